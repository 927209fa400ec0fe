"""The idempotency key of a submit when the user gives none.

In CI it is made of the pipeline step and what is submitted, so that a step that is started again after a lost
connection finds its job. A re-run that a person asked for has another run or attempt number, hence another key.
Elsewhere every call means a new job, and the key is random.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.client.calls import new_key
from tidegate.wire.spec import JobSpec

# Per CI system: what names one run of one step. The first system whose first variable is set counts.
_STEPS: Final = (
    ("GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "GITHUB_JOB", "GITHUB_ACTION", "GITHUB_REPOSITORY"),
    ("CI_JOB_ID", "CI_SERVER_URL"),
    ("BUILDKITE_JOB_ID", "BUILDKITE_RETRY_COUNT"),
    ("CIRCLE_WORKFLOW_JOB_ID", "CIRCLE_BUILD_NUM"),
    ("SYSTEM_JOBID", "SYSTEM_JOBATTEMPT", "SYSTEM_TASKINSTANCEID"),
    ("BUILD_TAG", "STAGE_NAME", "JENKINS_URL"),
)


def default_key(specs: Sequence[JobSpec], env: Mapping[str, str]) -> str:
    """A key for this submit. The specs have their code archives' digests, so other code is another job."""
    for names in _STEPS:
        if env.get(names[0]):
            step = "\0".join(f"{name}={env.get(name, '')}" for name in names)
            content = "\0".join(spec.model_dump_json(exclude_unset=True) for spec in specs)
            return "ci-" + hashlib.sha256(f"{step}\0{content}".encode()).hexdigest()[:40]
    return new_key()
