"""A pod that brings the archive of a job's code to a volume claim, before the job is created.

It waits until a command in it has received the archive (`build_receive_command`), and ends with 0. The volume keeps the
archive under its digest, so the command of a later run receives nothing.
"""

from torchyard.agents.job_code import CLAIM_ROOT, find_claim
from torchyard.diagnosis.pod_facts import ROLE_LABEL
from torchyard.model.plan import CodeClaim
from torchyard.model.requirements import ClusterRequirement, Permission
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods.code.unpacking import ARCHIVE_KEY, CODE_ROLE, CONTAINER_NAME
from torchyard.pods.etcd import PERMISSION_VERBS
from torchyard.pods.template import attempt_labels
from torchyard.pods.volumes import CODE_CLAIM_VOLUME, Manifest, drop_empty

VOLUME_FOLDER = "/run/torchyard-volume"
_LIFETIME_S = 3600  # of a pod whose launcher was lost before it had sent the archive
# Fields of the job's pods, so that this one may run, and can write, where they can read.
_SHARED_FIELDS = (
    "nodeSelector",
    "tolerations",
    "serviceAccountName",
    "priorityClassName",
    "imagePullSecrets",
    "securityContext",
)
_WAIT_LINES = """\
until [ -e "$1" ]; do sleep 1; done
rm -f "$1"
"""
# A reader never sees an incomplete archive, also if two pods receive the same one. Each try has a file of its own: the
# one before it may not have noticed yet that its connection is broken.
_RECEIVE_LINES = f"""\
folder=$1
size=$2
part=$folder/.part-$3-$$
done=$4
# A power cut of the volume's server may have left an archive that is empty or cut off.
if [ ! -f "$folder/{ARCHIVE_KEY}" ] || [ "$(wc -c <"$folder/{ARCHIVE_KEY}" || echo 0)" -ne "$size" ]; then
mkdir -p "$folder"
trap 'rm -f "$part"' EXIT
head -c "$size" >"$part"
received=$(wc -c <"$part")
if [ "$received" -ne "$size" ]; then echo "received $received of $size bytes" >&2; exit 1; fi
mv "$part" "$folder/{ARCHIVE_KEY}"
fi
: >"$done"
"""


def build_code_upload(profile: ResolvedProfile, run: Run, template: Manifest) -> tuple[Manifest, ...]:
    """The pod that brings the code to its claim; empty if the code comes otherwise. `template`: of the job's pods."""
    claim = find_claim(profile)
    if claim is None:
        return ()
    spec = template["spec"]
    unpacking = next(container for container in spec["initContainers"] if container["name"] == CONTAINER_NAME)
    name = f"{run.job(profile)}-upload"
    container = {
        "name": CONTAINER_NAME,
        "image": unpacking["image"],
        "command": ["/bin/sh", "-c", _WAIT_LINES, "torchyard", _get_marker(name)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": CODE_CLAIM_VOLUME, "mountPath": VOLUME_FOLDER}],
        "securityContext": unpacking.get("securityContext"),
        "imagePullPolicy": unpacking.get("imagePullPolicy"),
    }
    pod_spec = {key: spec[key] for key in _SHARED_FIELDS if key in spec}
    pod_spec |= {
        "containers": [drop_empty(container)],
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _LIFETIME_S,
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "volumes": [{"name": CODE_CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": claim.name}}],
    }
    labels = attempt_labels(profile, run) | {ROLE_LABEL: CODE_ROLE}
    return ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": pod_spec},)


def list_upload_requirements(profile: ResolvedProfile) -> tuple[ClusterRequirement, ...]:
    """The rights to bring the code to its claim; empty if the code comes otherwise."""
    if find_claim(profile) is None:
        return ()
    return (
        Permission(verbs=PERMISSION_VERBS, resource="pods"),
        Permission(verbs=("get", "create"), resource="pods/exec"),
    )


def is_code_upload(obj: Manifest) -> bool:
    """Whether an object of a plan is the pod that brings the code to a claim."""
    labels = obj["metadata"].get("labels") or {}
    return obj["kind"] == "Pod" and labels.get(ROLE_LABEL) == CODE_ROLE


def build_receive_command(claim: CodeClaim, packed_bytes: int, pod_name: str) -> tuple[str, ...]:
    """The command that receives the archive on its stdin, unless the volume has it, and lets the pod end.

    It does not wait for the end of its input, which servers before Kubernetes 1.30 do not report.
    """
    folder = f"{VOLUME_FOLDER}/{claim.folder}"
    return ("/bin/sh", "-ec", _RECEIVE_LINES, "torchyard", folder, str(packed_bytes), pod_name, _get_marker(pod_name))


def _get_marker(pod_name: str) -> str:
    """The file on the volume that lets the pod end."""
    return f"{VOLUME_FOLDER}/{CLAIM_ROOT}/.done-{pod_name}"
