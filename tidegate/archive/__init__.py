"""Code archives (`workdir`): `pack` makes them where the CLI runs, `unpack` opens them beside the job."""
