"""The options of Run:ai's first command line (v1), as its vendor documents them for `submit-dist pytorch` and others.

The real program is closed source and needs a control plane. The fake one (tests/programs/runai.py) must not accept an
option that the real one would refuse, because a plan with that option would pass the tests and fail on a cluster.
"""

_SUBMIT_OPTIONS = """
    workers no-master min-replicas max-replicas clean-pod-policy name job-name-prefix project template image
    image-pull-policy command working-dir environment annotation label gpu gpu-memory mig-profile cpu cpu-limit memory
    memory-limit extended-resource large-shm host-network host-ipc add-capability allow-privilege-escalation run-as-user
    run-as-uid run-as-gid pvc pvc-exists pvc-new volume nfs-server s3 git-sync mount-propagation create-home-dir
    node-pools node-type toleration preferred-pod-topology-key required-pod-topology-key backoff-limit port service-type
    address stdin tty attach interactive preemptible dry-run loglevel
"""
SUBMIT_OPTIONS = frozenset(_SUBMIT_OPTIONS.split())
DESCRIBE_OPTIONS = frozenset({"project", "output"})
LOGS_OPTIONS = frozenset({"project", "follow", "pod", "since", "since-time", "tail", "timestamps"})
