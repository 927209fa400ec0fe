"""Data-parallel training of a small network with NumPy that survives revocation without losing a bit.

Every rank works on its slice of each batch; gradients are summed in rank order over one TCP connection per rank. Model,
optimizer, noise generator and position are saved, so that an interrupted run ends with exactly the loss of an unbroken
one. The batch belongs to the step and not to the ranks, so that a run may go on with more or fewer of them: the sums
then differ in the last bits only. Environment: STEPS, STEP_MS (pace, for demonstrations), SAVE_EVERY, SEED.
"""

import io
import json
import os
import socket
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one order of additions, whatever the machine
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

try:
    from tidegate import job
except ModuleNotFoundError:  # an image without tidegate: the agent says where its helper lies
    sys.path.append(os.environ.get("TIDEGATE_HELPER", ""))
    from tidegate import job

STEPS = int(os.environ.get("STEPS", "150"))
STEP_S = int(os.environ.get("STEP_MS", "0")) / 1000
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "20"))
SEED = int(os.environ.get("SEED", "7"))
SAMPLES, BATCH, INPUTS, HIDDEN = 2048, 64, 16, 48
PEAK_RATE = 0.01
JOIN_S, COLLECTIVE_S = 120.0, 120.0
PARTS = ("model", "optimizer", "scheduler", "rng", "data")
SHAPES = {"w1": (INPUTS, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 1), "b2": (1,)}


class Ring:
    """The gang's connections: every rank to rank 0. `total` is a sum in rank order, so it has one value."""

    def __init__(self, ctx):
        self.rank, self.size = ctx.rank, ctx.world_size
        self.peers = []
        address = (ctx.master_addr, ctx.master_port)
        if self.size > 1 and self.rank == 0:
            with socket.create_server(address) as server:
                server.settimeout(JOIN_S)
                found = {}
                while len(found) < self.size - 1:
                    connection, _ = server.accept()
                    connection.settimeout(COLLECTIVE_S)
                    found[int.from_bytes(receive(connection, 4), "big")] = connection
                self.peers = [found[rank] for rank in sorted(found)]
        elif self.size > 1:
            self.peers = [join(address)]
            self.peers[0].sendall(self.rank.to_bytes(4, "big"))

    def total(self, values):
        """The sum of one float64 vector over all ranks."""
        if self.size == 1:
            return values
        if self.rank:
            self.peers[0].sendall(values.tobytes())
            return np.frombuffer(receive(self.peers[0], values.nbytes), dtype=np.float64)
        for peer in self.peers:
            values = values + np.frombuffer(receive(peer, values.nbytes), dtype=np.float64)
        for peer in self.peers:
            peer.sendall(values.tobytes())
        return values


def join(address):
    """Connect to rank 0, which may start later."""
    deadline = time.monotonic() + JOIN_S
    while True:
        try:
            connection = socket.create_connection(address, timeout=COLLECTIVE_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def receive(connection, size):
    """Exactly `size` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("a rank is gone")
        data += piece
    return bytes(data)


def dataset():
    """The same synthetic data on every rank."""
    source = np.random.default_rng(SEED)
    inputs = source.standard_normal((SAMPLES, INPUTS))
    targets = np.sin(inputs @ source.standard_normal(INPUTS) / 2) + 0.05 * source.standard_normal(SAMPLES)
    return inputs, targets[:, None]


def batch_of(step):
    """Which samples belong to a step: a fresh order per epoch, known from the step alone."""
    per_epoch = SAMPLES // BATCH
    order = np.random.default_rng((SEED, step // per_epoch)).permutation(SAMPLES)
    begin = step % per_epoch * BATCH
    return order[begin : begin + BATCH]


def forward(model, inputs):
    hidden = np.tanh(inputs @ model["w1"] + model["b1"])
    return hidden, hidden @ model["w2"] + model["b2"]


def gradients(model, inputs, targets):
    """One flat vector: the gradients in the order of SHAPES, and the summed loss at its end."""
    hidden, output = forward(model, inputs)
    error = output - targets
    slope = 2 * error / BATCH
    inner = slope @ model["w2"].T * (1 - hidden**2)
    parts = {"w1": inputs.T @ inner, "b1": inner.sum(0), "w2": hidden.T @ slope, "b2": slope.sum(0)}
    return np.concatenate([*(parts[name].ravel() for name in SHAPES), [(error**2).sum() / BATCH]])


class State:
    """Everything that the next step depends on."""

    def __init__(self):
        source = np.random.default_rng((SEED, 1))
        self.model = {name: source.standard_normal(shape) / 4 for name, shape in SHAPES.items()}
        self.first = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.second = {name: np.zeros(shape) for name, shape in SHAPES.items()}
        self.noise = np.random.default_rng((SEED, 2))  # the same on every rank: each draws for the whole batch

    def update(self, step, flat, scale):
        """Adam with a warm-up and a cosine decay."""
        rate = scale * PEAK_RATE * min(1.0, (step + 1) / 20) * 0.5 * (1 + np.cos(np.pi * step / STEPS))
        offset = 0
        for name, shape in SHAPES.items():
            size = int(np.prod(shape))
            gradient = flat[offset : offset + size].reshape(shape)
            offset += size
            self.first[name] = 0.9 * self.first[name] + 0.1 * gradient
            self.second[name] = 0.999 * self.second[name] + 0.001 * gradient**2
            first = self.first[name] / (1 - 0.9 ** (step + 1))
            second = self.second[name] / (1 - 0.999 ** (step + 1))
            self.model[name] = self.model[name] - rate * first / (np.sqrt(second) + 1e-8)

    def files(self, rank):
        """What this rank saves. All of it is replicated, so any number of ranks may begin from what rank 0 saved."""
        files = {"rng.json": json.dumps(self.noise.bit_generator.state).encode()}
        if rank == 0:
            arrays = {
                f"{kind}.{name}": array
                for kind, group in (("model", self.model), ("first", self.first), ("second", self.second))
                for name, array in group.items()
            }
            files["state.npz"] = lambda file: np.savez(file, **arrays)
        return files

    def load(self, found):
        with np.load(io.BytesIO(found.file("state.npz").read_bytes())) as arrays:
            for kind, group in (("model", self.model), ("first", self.first), ("second", self.second)):
                group.update({name: arrays[f"{kind}.{name}"] for name in SHAPES})
        self.noise.bit_generator.state = json.loads(found.file("rng.json").read_text())


def say(text):
    print(text, flush=True)


def main():
    ctx = job.context()
    store = job.checkpoints() if ctx.checkpoint_url else None
    inputs, targets = dataset()
    state = State()
    found = store.resume() if store else None
    if found:
        state.load(found)
        say(f"rank {ctx.rank}: resumed from step {found.step} of attempt {found.attempt}")
    if ctx.target_replicas:
        say(f"rank {ctx.rank} of {ctx.world_size}: {ctx.grad_accum} micro-batches, rate times {ctx.lr_scale:g}")
    ring = Ring(ctx)
    for step in range(found.step + 1 if found else 0, STEPS):
        whole = batch_of(step)
        noisy = inputs[whole] + 0.01 * state.noise.standard_normal((BATCH, INPUTS))
        mine = np.arange(BATCH)[ctx.rank :: ctx.world_size]
        parts = np.array_split(
            mine, ctx.grad_accum
        )  # at half the size each rank does twice as many, as large as before
        flat = ring.total(sum(gradients(state.model, noisy[part], targets[whole[part]]) for part in parts))
        state.update(step, flat, ctx.lr_scale)
        time.sleep(STEP_S)
        if ctx.rank == 0 and (step % 10 == 0 or step == STEPS - 1):
            say(f"step {step} loss={flat[-1]:.6f}")
        job.report(step, (step + 1) * BATCH)
        stop = job.should_stop(step)
        due = job.should_save(step) or (step + 1) % SAVE_EVERY == 0 or step == STEPS - 1
        if store and (stop or due):
            layout = {"tp": 1, "pp": 1, "dp": ctx.world_size}
            store.save(step, state.files(ctx.rank), parts=PARTS, parallelism=layout, reshardable=True)
            store.prune(keep=2)
        if stop and step < STEPS - 1:
            say(f"rank {ctx.rank}: told to leave, {'saved' if store else 'nothing saved'} after step {step}")
            job.exit_saved()
    if ctx.rank == 0:
        say(f"final_loss={float(((forward(state.model, inputs)[1] - targets) ** 2).mean())!r}")
    job.finish()


if __name__ == "__main__":
    main()
