"""Manifests without a trap, which tests spoil in one place."""

from typing import Any

import yaml

from torchyard.lint.manifest import lint_manifest
from torchyard.model.finding import Finding

POD = "spec.tasks[0].template.spec"
REPLICAS = "spec.pytorchReplicaSpecs.Worker"
TRAIN = f"{REPLICAS}.template.spec"
VOLCANO = """
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec:
  minAvailable: 2
  plugins: {env: [], svc: ["--publish-not-ready-addresses=true"]}
  policies: [{events: [PodFailed, PodEvicted], action: RestartJob}]
  tasks:
  - name: worker
    replicas: 2
    template:
      spec:
        hostNetwork: true
        restartPolicy: Never
        tolerations: [{key: nvidia.com/gpu, operator: Exists}]
        volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 32Gi}}]
        containers:
        - name: worker
          image: registry.example:5000/train:v1
          securityContext: {privileged: true, capabilities: {add: [IPC_LOCK, SYS_ADMIN]}}
          env:
          - {name: NCCL_DEBUG_FILE, value: /dev/stdout}
          - {name: JOB_ID, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['scheduling.k8s.io/group-name']"}}}
          - {name: TRY, valueFrom: {fieldRef: {fieldPath: "metadata.annotations['volcano.sh/job-retry-count']"}}}
          command:
          - /bin/sh
          - -c
          - |
            # not bash: ${hosts[0]} <<< "$VC_WORKER_HOSTS"
            first="${VC_WORKER_HOSTS%%,*}"; echo "don't [[ worry ]]"
            python3 -c 'a = (1,); print(a[[0]][0])'
            torchrun --nnodes=$VC_WORKER_NUM --rdzv-backend=etcd-v2 --rdzv-endpoint="$first:2379" \\
              --rdzv_id="$JOB_ID-$TRY" --node-rank=$VC_TASK_INDEX train.py --nnodes=2 --nnodes=2
"""
PYTORCHJOB = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  elasticPolicy: {rdzvBackend: etcd-v2, rdzvHost: etcd, rdzvPort: 2379, rdzvId: train-1, minReplicas: 1}
  pytorchReplicaSpecs:
    Worker:
      replicas: 1
      restartPolicy: Never
      template:
        spec:
          hostNetwork: true
          dnsPolicy: ClusterFirstWithHostNet
          containers:
          - name: pytorch
            image: train@sha256:0a1b
            ports: [{name: pytorchjob-port, containerPort: 29417}]
            command: [torchrun, --nproc-per-node, "2", train.py]
---
apiVersion: v1
kind: Service
metadata: {name: etcd}
spec: {clusterIP: None, selector: {app: etcd}}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd, labels: {app: etcd}}
spec:
  containers:
  - {name: etcd, image: quay.io/coreos/etcd:v3.5.30, command: [etcd, --enable-v2], ports: [{containerPort: 2379}]}
"""
MASTER = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: train}
spec:
  runPolicy: {backoffLimit: 3}
  pytorchReplicaSpecs:
    Master: &replica
      replicas: 1
      template: {spec: {containers: [{name: pytorch, image: "train:v1", command: [torchrun, train.py]}]}}
    Worker: {<<: *replica, replicas: 3, restartPolicy: ExitCode}
"""
JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train}
spec:
  failurePolicy: {maxRestarts: 2}
  replicatedJobs:
  - name: worker
    template:
      spec:
        backoffLimit: 0
        parallelism: 2
        completions: 2
        template:
          spec:
            restartPolicy: Never
            containers:
            - name: worker
              image: train:v1
              env:
              - name: HEAD
                valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}}
              command:
              - torchrun
              - --nnodes=2
              - --rdzv-backend=c10d
              - --rdzv-endpoint=$(HEAD)-worker-0-0.$(HEAD):29417
              - train.py
"""
INDEXED_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  backoffLimit: 0
  completionMode: Indexed
  parallelism: 2
  completions: 2
  template:
    metadata: {creationTimestamp: null}
    spec:
      restartPolicy: Never
      subdomain: peers
      containers:
      - name: worker
        image: train:v1
        env: [{name: JOB, valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}}]
        command: [sh, -c, "torchrun --nnodes=2 --node-rank=$JOB_COMPLETION_INDEX --master-addr=$JOB-0.peers train.py"]
---
apiVersion: v1
kind: Service
metadata: {name: peers}
spec: {clusterIP: None, selector: {app: train}}
"""


# The manifest, the text to replace, its replacement, the location of the trap, and part of its sentence.
Trap = tuple[str, str, str, str, str]


def parse(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def list_traps(objects: list[dict[str, Any]]) -> list[str]:
    """The object and key of every trap that the linter reports."""
    return [finding.where for finding in lint_manifest(objects)]


def find_trap(trap: Trap) -> list[Finding]:
    """The warnings about a manifest with one change that contain the expected text, each with the expected location."""
    manifest, old_text, new_text, location, expected_text = trap
    assert old_text in manifest
    findings = lint_manifest(parse(manifest.replace(old_text, new_text, 1)))
    warnings = [finding for finding in findings if expected_text in str(finding)]
    assert all(location in finding.where.split(", ") for finding in warnings)
    return warnings
