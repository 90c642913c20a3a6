"""What refers to a job inside its own manifest follows when a run names the job."""

import copy
import re
import time
from typing import Any

import pytest

from torchyard.pods.manifest_names import JobReference, rename_references

VOLCANO = JobReference("Job", "train", ("master", "worker"), has_service=True, config_map="train-svc")
PYTORCHJOB = JobReference("PyTorchJob", "train", ("master", "worker"), has_service=False)
JOBSET = JobReference("JobSet", "train", ("node-0", "node"), has_service=True)
INDEXED = JobReference("Job", "train", ("",), has_service=False)
NEW = "night-1a2b-1"
# Of the jobs: a word that may mean anything, and one that hardly does.
NAMES = ("train", "llm-train")


def give_name(job: JobReference, name: str) -> JobReference:
    """The job under another name."""
    return job._replace(name=name, config_map=job.config_map.replace(job.name, name))


def put_name(text: str, name: str) -> str:
    """The text with another job's name in place of `train`."""
    return re.sub(r"(?:\b|(?<=\\n))train\b", name, text)


def build_job(job: JobReference, **pod: Any) -> dict[str, Any]:
    """A job whose only pod has these fields. Only the names in it matter here."""
    template = {"spec": {"containers": [{"name": "train", "image": "registry/train:1"}]} | pod}
    return {"kind": job.kind, "metadata": {"name": job.name}, "spec": {"template": template}}


def rename(job: JobReference, *documents: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """The documents after a job has got another name, what was replaced, and the doubts."""
    renamed = copy.deepcopy(list(documents))
    renaming = rename_references(renamed, [job], NEW)
    return renamed, [str(finding) for finding in renaming.replaced], [str(finding) for finding in renaming.doubts]


def rename_script(job: JobReference, script: str, *others: dict[str, Any]) -> str:
    """A script of the job's container after the job has got another name."""
    container = {"name": "train", "command": ["bash", "-c", script]}
    (document, *_), _, _ = rename(job, build_job(job, containers=[container]), *others)
    return str(document["spec"]["template"]["spec"]["containers"][0]["command"][2])


def build_service(name: str) -> dict[str, Any]:
    return {"kind": "Service", "metadata": {"name": name}, "spec": {"clusterIP": "None"}}


REFERENCES = [
    (JOBSET, "MASTER=train-node-0-0.train python t.py", f"MASTER={NEW}-node-0-0.{NEW} python t.py"),
    (JOBSET, "for i in 0 1; do ping train-node-0-$i.train; done", f"for i in 0 1; do ping {NEW}-node-0-$i.{NEW}; done"),
    (JOBSET, "echo $(hostname).train", f"echo $(hostname).{NEW}"),
    (
        PYTORCHJOB,
        "accelerate launch --main_process_ip=train-worker-0",
        f"accelerate launch --main_process_ip={NEW}-worker-0",
    ),
    (PYTORCHJOB, "composer --master_addr train-master-0 t.py", f"composer --master_addr {NEW}-master-0 t.py"),
    (
        PYTORCHJOB,
        "torchrun --rdzv-endpoint tcp://train-worker-0:29500",
        f"torchrun --rdzv-endpoint tcp://{NEW}-worker-0:29500",
    ),
    (VOLCANO, "H=train-worker-1.train.ml.svc.cluster.local", f"H={NEW}-worker-1.{NEW}.ml.svc.cluster.local"),
    (VOLCANO, "nslookup train.$NS.svc", f"nslookup {NEW}.$NS.svc"),
    (VOLCANO, "torchrun --rdzv_endpoint=train:29500", f"torchrun --rdzv_endpoint={NEW}:29500"),
    (VOLCANO, "i=${HOSTNAME#train-worker-}", f"i=${{HOSTNAME#{NEW}-worker-}}"),
    (VOLCANO, "hostname | sed s/train-worker-//", f"hostname | sed s/{NEW}-worker-//"),
    (VOLCANO, "sed -i s/HEAD/train-master-0.train/ hosts", f"sed -i s/HEAD/{NEW}-master-0.{NEW}/ hosts"),
    (VOLCANO, "JOB=train; ping $JOB-worker-0", f"JOB={NEW}; ping $JOB-worker-0"),
    (VOLCANO, "P=train-worker; ping $P-0", f"P={NEW}-worker; ping $P-0"),
    (VOLCANO, "kubectl get pods -l volcano.sh/job-name=train", f"kubectl get pods -l volcano.sh/job-name={NEW}"),
    (
        VOLCANO,
        "kubectl get vcjob/train; kubectl delete cm train-x",
        f"kubectl get vcjob/{NEW}; kubectl delete cm train-x",
    ),
    (INDEXED, "torchrun --master_addr train-0.train-hosts", f"torchrun --master_addr {NEW}-0.{NEW}-hosts"),
    (
        INDEXED,
        "ping ${PREFIX}0.train-hosts; ping $(JOB)-$i.train-hosts",
        f"ping ${{PREFIX}}0.{NEW}-hosts; ping $(JOB)-$i.{NEW}-hosts",
    ),
    (
        INDEXED,
        "torchrun --master_addr=train-0 --rdzv-endpoint train-0:29400",
        f"torchrun --master_addr={NEW}-0 --rdzv-endpoint {NEW}-0:29400",
    ),
    (INDEXED, "MASTER_ADDR=train-0 python t.py; ping train-$i", f"MASTER_ADDR={NEW}-0 python t.py; ping {NEW}-$i"),
    (
        INDEXED,
        "pdsh -w train-[0-3].train-hosts; echo train-{0..3}.train-hosts; ssh train-{0,1}",
        f"pdsh -w {NEW}-[0-3].{NEW}-hosts; echo {NEW}-{{0..3}}.{NEW}-hosts; ssh {NEW}-{{0,1}}",
    ),
    (
        INDEXED,
        "seq -f 'train-%g.train-hosts slots=8' 0 3; printf 'train-%02d.train-hosts' 1",
        f"seq -f '{NEW}-%g.{NEW}-hosts slots=8' 0 3; printf '{NEW}-%02d.{NEW}-hosts' 1",
    ),
    (
        INDEXED,
        "cat train-$((RANK + 1)).train-hosts; cat train-`expr 1`.train-hosts.ns.svc",
        f"cat {NEW}-$((RANK + 1)).{NEW}-hosts; cat {NEW}-`expr 1`.{NEW}-hosts.ns.svc",
    ),
    (
        INDEXED,
        "python -c \"[f'train-{i}.train-hosts', 'train-{}.train-hosts']\"",
        f"python -c \"[f'{NEW}-{{i}}.{NEW}-hosts', '{NEW}-{{}}.{NEW}-hosts']\"",
    ),
    (JOBSET, "echo train-node-0-{0..3}.train", f"echo {NEW}-node-0-{{0..3}}.{NEW}"),
    (
        VOLCANO,
        "case $H in train-worker-*) ssh train-worker-N;; esac",
        f"case $H in {NEW}-worker-*) ssh {NEW}-worker-N;; esac",
    ),
    (
        VOLCANO,
        r"printf '\ntrain-worker-0\n'; [[ $HOSTNAME == train-master* || `hostname` =~ ^train-worker ]]",
        rf"printf '\n{NEW}-worker-0\n'; [[ $HOSTNAME == {NEW}-master* || `hostname` =~ ^{NEW}-worker ]]",
    ),
    (
        VOLCANO,
        "case $POD_NAME in train-master*) r=0;; train-worker-*) r=${HOSTNAME/train-worker-/};; esac",
        f"case $POD_NAME in {NEW}-master*) r=0;; {NEW}-worker-*) r=${{HOSTNAME/{NEW}-worker-/}};; esac",
    ),
    (VOLCANO, "python -c \"h.startswith('train-master')\"", f"python -c \"h.startswith('{NEW}-master')\""),
    (VOLCANO, "kubectl wait pod/train-worker-0 -n ml", f"kubectl wait pod/{NEW}-worker-0 -n ml"),
    (
        INDEXED,
        "[ $(hostname) = train-0 ]; [[ $HOSTNAME == 'train-0' || $POD_NAME == train-0-* ]]",
        f"[ $(hostname) = {NEW}-0 ]; [[ $HOSTNAME == '{NEW}-0' || $POD_NAME == {NEW}-0-* ]]",
    ),
    (
        INDEXED,
        "case $HOSTNAME in train-0) m=1;; train-1*) m=0;; esac",
        f"case $HOSTNAME in {NEW}-0) m=1;; {NEW}-1*) m=0;; esac",
    ),
    (
        INDEXED,
        "kubectl get job -n ml -o=json train; kubectl get job -n train other",
        f"kubectl get job -n ml -o=json {NEW}; kubectl get job -n train other",
    ),
    (JOBSET, "curl http://train; curl -s train/x", f"curl http://{NEW}; curl -s {NEW}/x"),
    (JOBSET, "until nslookup train; do ping -c 1 train; done", f"until nslookup {NEW}; do ping -c 1 {NEW}; done"),
    (JOBSET, "nc -zv -w 1 train 22; ssh -p 222 root@train ls", f"nc -zv -w 1 {NEW} 22; ssh -p 222 root@{NEW} ls"),
    (JOBSET, "getent hosts train; ssh-copy-id root@train", f"getent hosts {NEW}; ssh-copy-id root@{NEW}"),
    (JOBSET, "export MASTER_ADDR=train RDZV_HOST='train'", f"export MASTER_ADDR={NEW} RDZV_HOST='{NEW}'"),
    (JOBSET, "python t.py --host train --server-name=train", f"python t.py --host {NEW} --server-name={NEW}"),
    (JOBSET, "python t.py --master_addr train.ml", f"python t.py --master_addr {NEW}.ml"),
    (JOBSET, 'echo \'{"host": "train", "url":"train"}\'', f'echo \'{{"host": "{NEW}", "url":"{NEW}"}}\''),
    (JOBSET, "torchrun --rdzv train:$MASTER_PORT", f"torchrun --rdzv {NEW}:$MASTER_PORT"),
    (JOBSET, "etcdctl train.ml:2379", f"etcdctl {NEW}.ml:2379"),
    (VOLCANO, "torchrun --rdzv_id=train --rdzv-backend=etcd-v2", f"torchrun --rdzv_id={NEW} --rdzv-backend=etcd-v2"),
    (PYTORCHJOB, "export PET_RDZV_ID='train' RUN=train", f"export PET_RDZV_ID='{NEW}' RUN=train"),
    (INDEXED, "torchrun --rdzv-id train --rdzv_id=$train", f"torchrun --rdzv-id {NEW} --rdzv_id=$train"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("job", "script", "expected"), REFERENCES, ids=[row[1] for row in REFERENCES])
def test_reference_in_a_script_follows(job: JobReference, script: str, expected: str, name: str) -> None:
    """A pod's name, its address, the job's Service as a host, and the job in a selector follow the job's new name."""
    service = build_service(f"{name}-hosts")
    assert rename_script(give_name(job, name), put_name(script, name), service) == put_name(expected, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "script",
    [
        "python train.py --name train --data /mnt/train-worker-0/data",
        "train.train(model.train)",
        "export WANDB_NAME=train; tee /logs/train.log",
        "docker pull registry/train:1",
        "gzip train/data",
        "RANK=$(hostname | rev | cut -d- -f1 | rev)",
        "pretrain-worker-0 train-ing train_worker_0",
        "python -m train --split train --resnet train-50",
        "python t.py --job-name=train --job-name train",
        "python t.py --model train --tokenizer=train --output_dir train --hub meta/train --cfg train.toml 'train.pt'",
        "export OTEL_SERVICE_NAME=train DD_SERVICE=train MODEL_NAME=train EXPERIMENT='train'",
        'echo \'{"run": {"name": "train", "results_dir":"train"}}\'',
        "tee logs/$RANK.train.log > $RANK.train.txt; cat data/$SPLIT.train",
        "python t.py --server train.py; ssh -p 22 head python t.py --name train",
        "zip train.zip --clip train",
        "python t.py --init train-7.safetensors --old train-7.1",
        "python t.py --data 'train-{000..127}.tar' --tf train-%d.tfrecord --np train-[0-9].arrow; f'train-{step}.ckpt'",
        "python t.py --name train-worker-experiment --tag=train-worker-large",
        "for f in train-0 train-worker; do mv $f ${f/train-/val-}; done",
        "[[ $SPLIT == train-0* || $RUN == train-worker ]]",
        "python -c \"name.startswith('train-0')\"",
        "RANK=${HOSTNAME: -1} JOB=${RUN:3}; echo $RUN | cut -c 3-",
    ],
)
def test_what_only_looks_like_the_name_stays(script: str, name: str) -> None:
    """A path, a module, a data set, a model or an experiment of the same name is not the job, and causes no doubt."""
    for job in (VOLCANO, PYTORCHJOB, JOBSET, INDEXED):
        container = {"name": "train", "command": ["bash", "-c", put_name(script, name)]}
        document = build_job(give_name(job, name), containers=[container])
        assert rename(give_name(job, name), document) == ([document], [], [])


@pytest.mark.parametrize("word", ["${HOSTNAME:1", "train-{", "train-`", "`hostname ", "train-worker-"])
def test_long_line_takes_no_long_time(word: str) -> None:
    """The time grows with a line's length, and not with its square, also where nothing is closed."""
    start = time.process_time()
    rename_script(VOLCANO, word * 10_000)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "script",
    [
        "import train",
        "gzip train /data",
        "python client.py train 22",
        "scp x train:/y",
        "export SERVICE_NAME=train",
        "python t.py --headless-svc-name train",
    ],
)
def test_word_that_may_be_the_jobs_service_is_a_doubt(script: str) -> None:
    """Where nothing shows whether the name is a host's it stays, with a doubt, unless it is a word of the language."""
    for name, count in (("train", 0), ("llm-train", 1)):
        container = {"name": "a", "command": ["bash", "-c", put_name(script, name)]}
        for job in (VOLCANO, JOBSET):
            document = build_job(give_name(job, name), containers=[container])
            (new_document,), replaced, doubts = rename(give_name(job, name), document)
            assert (new_document, replaced, len(doubts)) == (document, [], count)


def test_name_of_a_companion_service_as_another_value_is_a_doubt() -> None:
    """No experiment has the name of a companion Service: with any option or variable it is a doubt."""
    container = {"name": "a", "args": ["--tracker=train-svc"], "env": [{"name": "X", "value": "train-svc"}]}
    _, _, doubts = rename(INDEXED, build_job(INDEXED, containers=[container]), build_service("train-svc"))
    assert [doubt.split(":")[0].rpartition(".")[2] for doubt in doubts] == ["args[0]", "value"]
    assert f"a run gives the Service train-svc the name {NEW}-svc: `train-svc` stays as it is" in doubts[0]


def test_host_in_a_value_of_its_own_follows() -> None:
    """A host follows as the value of a variable, of the option before it, and of an entry of a ConfigMap."""
    env = [{"name": "RDZV_ENDPOINT", "value": "train"}, {"name": "RUN_NAME", "value": "train"}]
    args = ["--master_addr", "train", "--model", "train", "train"]
    data = {"MASTER_ADDR": "train", "model": "train", "config.yaml": "host: train\nname: train\n"}
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}
    document = build_job(JOBSET, hostname="train", containers=[{"name": "a", "args": args, "env": env}])
    (new_job, new_config), _, doubts = rename(JOBSET, document, config)
    pod = new_job["spec"]["template"]["spec"]
    assert [variable["value"] for variable in pod["containers"][0]["env"]] == [NEW, "train"]
    assert pod["containers"][0]["args"] == ["--master_addr", NEW, "--model", "train", "train"]
    assert new_config["data"] == {"MASTER_ADDR": NEW, "model": "train", "config.yaml": f"host: {NEW}\nname: train\n"}
    assert (pod["hostname"], doubts) == ("train", [])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "scheme", ["abfss", "aws", "az", "azureml", "dbfs", "file", "gcs", "gs", "hdfs", "hf", "mlflow", "oci", "s3", "s3a"]
)
def test_bucket_and_pod_of_one_name(name: str, scheme: str) -> None:
    """What follows the scheme of a store is a bucket or a path and stays, also as a host option's value."""
    script = f"python t.py --url {scheme}://{name}/ckpt {scheme}://{name} {scheme}://{name}-worker-0/ckpt"
    for job in (VOLCANO, PYTORCHJOB, JOBSET, INDEXED):
        assert rename_script(give_name(job, name), script) == script


@pytest.mark.parametrize("scheme", ["tcp", "http", "https", "grpc", "ssh", "ws", "redis", "etcd", "nccl"])
def test_host_after_a_network_scheme_follows(scheme: str) -> None:
    """What follows the scheme of a protocol is a host: a pod's name follows the job's."""
    assert rename_script(VOLCANO, f"curl {scheme}://train-worker-0:1") == f"curl {scheme}://{NEW}-worker-0:1"


def test_variable_that_builds_a_pods_name_follows() -> None:
    """A variable with the job's name follows if a script builds the name of a pod from it; another one stays."""
    env = [{"name": "JOB", "value": "train"}, {"name": "WANDB_NAME", "value": "train"}]
    container = {"name": "a", "command": ["sh", "-c", "ping ${JOB}-worker-0"], "env": env}
    (document,), _, _ = rename(VOLCANO, build_job(VOLCANO, containers=[container]))
    variables = document["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [variable["value"] for variable in variables] == [NEW, "train"]


@pytest.mark.parametrize(
    ("job", "script"),
    [
        (INDEXED, "torchrun --master-addr=$V-0.headless t.py"),
        (INDEXED, "torchrun --rdzv-endpoint ${V}-0.headless:29500"),
        (INDEXED, "for i in 0 1; do ping $(V)-${i}.$SUBDOMAIN; done"),
        (VOLCANO, "P=$V-worker; ping $P-0"),
        (JOBSET, "curl http://$V-node-$i-0.$V:80"),
        (JOBSET, "ssh ${JOB_LABEL}-${i}.$V"),
        (VOLCANO, "ping train-worker-0.$V"),
        (VOLCANO, "ping $(hostname).$V"),
        (VOLCANO, "ping ${HOSTNAME_PREFIX}${i}.${V}"),
        (VOLCANO, "ping `hostname`.$V"),
    ],
)
def test_variable_in_an_address_follows(job: JobReference, script: str) -> None:
    """A variable that begins a pod's name, or follows one in its address, has the job's new name."""
    container = {"name": "a", "command": ["sh", "-c", script], "env": [{"name": "V", "value": "train"}]}
    (document,), _, _ = rename(job, build_job(job, containers=[container]))
    assert document["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "V", "value": NEW}]


def test_service_in_a_variable_of_an_address_follows() -> None:
    """A variable with the name of a Service follows if a script has it after a pod's name; another one is a doubt."""
    env = [{"name": name, "value": value} for name, value in [("JOB", "train"), ("S", "train-svc"), ("X", "train-svc")]]
    container = {"name": "a", "command": ["sh", "/scripts/run.sh"], "env": env}
    script = "MASTER=${JOB}-0.${S}\nS=train-svc X=train-svc sh a.sh\n"
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"run.sh": script}}
    job = build_job(INDEXED, containers=[container], subdomain="train-svc")
    (new_job, new_config, _), _, doubts = rename(INDEXED, job, config, build_service("train-svc"))
    new_env = new_job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [entry["value"] for entry in new_env] == [NEW, f"{NEW}-svc", "train-svc"]
    assert new_config["data"]["run.sh"] == script.replace("S=train-svc", f"S={NEW}-svc")
    assert [doubt.split(":")[0].rpartition(", ")[2] for doubt in doubts] == [
        "spec.template.spec.containers[0].env[2].value",
        "data.run.sh",
    ]


@pytest.mark.parametrize(
    ("job", "variable", "script"),
    [
        (INDEXED, "HOSTNAME_PREFIX", "bash /scripts/run.sh"),
        (INDEXED, "POD_PREFIX", "bash /scripts/run.sh"),
        (INDEXED, "P", "ping ${P}${i}.hosts"),
        (INDEXED, "P", "ping $P$i.hosts:80"),
        (VOLCANO, "P", "ping $(P)worker-0"),
        (JOBSET, "P", "ping ${P}node-0-$i"),
    ],
)
def test_start_of_pods_names_follows(job: JobReference, variable: str, script: str) -> None:
    """A variable with the job's name and a dash follows if it is a host's, or the names of pods begin with it."""
    env = [{"name": variable, "value": "train-"}, {"name": "Q", "value": "train"}]
    script = f"{script}; {variable}='train-' python t.py"
    container = {"name": "a", "command": ["sh", "-c", script], "env": env}
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {variable: "train-"}}
    (new_job, new_config), _, doubts = rename(job, build_job(job, containers=[container]), config)
    new_container = new_job["spec"]["template"]["spec"]["containers"][0]
    assert [entry["value"] for entry in new_container["env"]] == [f"{NEW}-", "train"]
    assert new_container["command"][2].endswith(f"; {variable}='{NEW}-' python t.py")
    assert (new_config["data"], doubts) == ({variable: f"{NEW}-"}, [])


def test_start_of_another_name_is_a_doubt() -> None:
    """A value or an assignment of the job's name and a dash may begin an experiment's name: it is a doubt."""
    env = [{"name": "RUN_PREFIX", "value": "train-"}, {"name": "X", "value": "train-x"}]
    script = "X=train- python t.py --out /ckpt/${X}${i}.pt --run ${RUN_PREFIX}$(date)"
    document = build_job(INDEXED, containers=[{"name": "a", "command": ["sh", "-c", script], "env": env}])
    documents, replaced, doubts = rename(INDEXED, document)
    assert (documents, replaced, len(doubts)) == ([document], [], 2)
    assert f"a run gives the job the name {NEW}: `train-` stays as it is; if names of its pods begin" in doubts[0]


def test_variable_of_a_config_map_follows() -> None:
    """An entry of a ConfigMap may be a variable of the pods, and follows like one."""
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"JOB": "train", "MODEL": "train"}}
    container = {"name": "a", "command": ["sh", "-c", "ping ${JOB}-worker-0"], "envFrom": []}
    (_, new_config), _, _ = rename(VOLCANO, build_job(VOLCANO, containers=[container]), config)
    assert new_config["data"] == {"JOB": NEW, "MODEL": "train"}


@pytest.mark.parametrize(
    "script",
    [
        "python t.py --model $V --output /ckpt/$V-finetuned",
        "python t.py --config configs/sft.$V.yaml --log $HOSTNAME.$V.log",
        "cp $V-7.safetensors /models/$V-0.ml; ls $V-2.1; docker pull $V-7:latest",
        "tee logs/$V-worker-0.log /logs/$V-node-0; tee $V-worker-$i.log; ls $V-worker/ckpt $V-node-0/ckpt",
        "cat /data/$HOSTNAME.$V; cat data.$V; ls $LANG.$V",
    ],
)
def test_variable_in_another_text_stays(script: str) -> None:
    """A variable in the name of a file or a model, or in a path, is not the job's, whatever the job's kind."""
    container = {"name": "a", "command": ["sh", "-c", script], "env": [{"name": "V", "value": "train"}]}
    for job in (VOLCANO, PYTORCHJOB, JOBSET, INDEXED):
        document = build_job(job, containers=[container])
        assert rename(job, document) == ([document], [], [])


def test_selector_of_the_jobs_pods_follows() -> None:
    """A selector by a label of the controller follows, in both forms; one by the user's own label stays."""
    terms = [
        {"labelSelector": {"matchLabels": {"volcano.sh/job-name": "train"}}},
        {"labelSelector": {"matchExpressions": [{"key": "job-name", "operator": "In", "values": ["train-master-0"]}]}},
        {"labelSelector": {"matchLabels": {"app": "train"}}},
    ]
    (document,), _, _ = rename(VOLCANO, build_job(VOLCANO, affinity={"podAntiAffinity": terms}))
    by_label, by_expression, by_own_label = document["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert by_label["labelSelector"]["matchLabels"] == {"volcano.sh/job-name": NEW}
    assert by_expression["labelSelector"]["matchExpressions"][0]["values"] == [f"{NEW}-master-0"]
    assert by_own_label["labelSelector"]["matchLabels"] == {"app": "train"}


def test_companion_with_the_jobs_name_follows() -> None:
    """A ConfigMap named after the job, what mounts it, and a reference to the job by kind and name follow."""
    rings = {"kind": "ConfigMap", "metadata": {"name": "rings-config-train"}, "data": {"hosts": "train-worker-0:8"}}
    monitor = {"kind": "Other", "metadata": {"name": "a"}, "spec": {"controllerRef": {"kind": "Job", "name": "train"}}}
    job = build_job(VOLCANO, volumes=[{"name": "r", "configMap": {"name": "rings-config-train"}}])
    (new_job, new_rings, new_monitor), replaced, _ = rename(VOLCANO, job, rings, monitor)
    assert new_job["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] == f"rings-config-{NEW}"
    assert (new_rings["metadata"]["name"], new_rings["data"]["hosts"]) == (f"rings-config-{NEW}", f"{NEW}-worker-0:8")
    assert new_monitor["spec"]["controllerRef"]["name"] == NEW
    assert f"ConfigMap rings-config-train, data.hosts: train-worker-0:8 becomes {NEW}-worker-0:8" in replaced


def test_companion_that_refers_to_the_job_has_its_own_name() -> None:
    """A companion without the job's name, which refers to the job, is each run's own, and what refers to it follows."""
    service = {"kind": "Service", "metadata": {"name": "headless-svc"}, "spec": {"selector": {"job-name": "train"}}}
    hosts = {"kind": "ConfigMap", "metadata": {"name": "hosts"}, "data": {"hosts": "$(JOB)-0.headless-svc"}}
    topology = {"kind": "ConfigMap", "metadata": {"name": "topology"}, "data": {"topology": "train"}}
    script = "torchrun --rdzv_endpoint=$(JOB)-0.headless-svc:12355 t.py"
    pod = {
        "subdomain": "headless-svc",
        "containers": [{"name": "a", "command": ["sh", "-c", script]}],
        "volumes": [{"configMap": {"name": "hosts"}}, {"configMap": {"name": "topology"}}],
    }
    (job, *companions), replaced, doubts = rename(INDEXED, build_job(INDEXED, **pod), hosts, service, topology)
    new_pod = job["spec"]["template"]["spec"]
    assert [obj["metadata"]["name"] for obj in companions] == [f"{NEW}-hosts", f"{NEW}-headless-svc", "topology"]
    assert companions[0]["data"]["hosts"] == f"$(JOB)-0.{NEW}-headless-svc"
    assert new_pod["subdomain"] == f"{NEW}-headless-svc"
    assert new_pod["containers"][0]["command"][2] == script.replace("headless-svc", f"{NEW}-headless-svc")
    assert [volume["configMap"]["name"] for volume in new_pod["volumes"]] == [f"{NEW}-hosts", "topology"]
    assert f"$(JOB)-0.headless-svc:12355 becomes $(JOB)-0.{NEW}-headless-svc:12355" in str(replaced)
    assert doubts == []


def test_claim_that_refers_to_the_job_keeps_its_name() -> None:
    """A claim holds data, and a ServiceAccount has rights outside of the cluster: they keep their names."""
    labels = {"job-name": "train"}
    for kind in ("PersistentVolumeClaim", "ServiceAccount", "Secret"):
        _, companion = rename(INDEXED, build_job(INDEXED), {"kind": kind, "metadata": {"name": "a", "labels": labels}})[
            0
        ]
        assert companion["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("domain", "channel", "expected"),
    [
        ("train-domain", "train-channel", (f"{NEW}-domain", f"{NEW}-channel")),
        ("train-domain", "channel", (f"{NEW}-domain", f"{NEW}-channel")),
        ("domain", "train-channel", (f"{NEW}-domain", f"{NEW}-channel")),
        ("domain", "channel", ("domain", "channel")),
    ],
)
def test_compute_domain_and_its_channel_follow(domain: str, channel: str, expected: tuple[str, str]) -> None:
    """A ComputeDomain and the template that it creates are each run's own together, and the pods' claim follows."""
    spec = {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": channel}}}
    compute_domain = {"kind": "ComputeDomain", "metadata": {"name": domain}, "spec": spec}
    job = build_job(JOBSET, resourceClaims=[{"name": "train", "resourceClaimTemplateName": channel}])
    (new_job, new_domain), _, _ = rename(JOBSET, job, compute_domain)
    assert (new_domain["metadata"]["name"], new_domain["spec"]["channel"]["resourceClaimTemplate"]["name"]) == expected
    claims = new_job["spec"]["template"]["spec"]["resourceClaims"]
    assert claims == [{"name": "train", "resourceClaimTemplateName": expected[1]}]


def test_claim_template_with_the_jobs_name_follows() -> None:
    """A ResourceClaimTemplate with the job's name is each run's own; one without it is shared."""
    names = ("train-rdma", "rdma")
    templates = [{"kind": "ResourceClaimTemplate", "metadata": {"name": name}} for name in names]
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in names]
    (job, *new_templates), _, _ = rename(JOBSET, build_job(JOBSET, resourceClaims=claims), *templates)
    new_claims = job["spec"]["template"]["spec"]["resourceClaims"]
    assert [claim["resourceClaimTemplateName"] for claim in new_claims] == [f"{NEW}-rdma", "rdma"]
    assert [template["metadata"]["name"] for template in new_templates] == [f"{NEW}-rdma", "rdma"]


def test_rights_of_the_jobs_pods_follow() -> None:
    """A Role follows with the names in it, and the RoleBinding that refers to it; the ServiceAccount stays."""
    rules = [
        {"resources": ["configmaps"], "resourceNames": ["train-config", "other"]},
        {"resources": ["secrets"], "resourceNames": ["train-config"]},
    ]
    role = {"kind": "Role", "metadata": {"name": "launcher"}, "rules": rules}
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "launcher"},
        "roleRef": {"kind": "Role", "name": "launcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "train"}],
    }
    config = {"kind": "ConfigMap", "metadata": {"name": "train-config"}}
    account = {"kind": "ServiceAccount", "metadata": {"name": "train"}}
    job = build_job(VOLCANO, serviceAccountName="train")
    (new_job, new_role, new_binding, _, new_account), _, _ = rename(VOLCANO, job, role, binding, config, account)
    names = [rule["resourceNames"] for rule in new_role["rules"]]
    assert names == [[f"{NEW}-config", "other"], ["train-config"]]
    assert new_role["metadata"] == new_binding["metadata"] == {"name": f"{NEW}-launcher"}
    assert new_binding["roleRef"]["name"] == f"{NEW}-launcher"
    assert (new_job["spec"]["template"], new_account) == (job["spec"]["template"], account)
    assert new_binding["subjects"] == binding["subjects"]


RUN_LABELS = {"torchyard/run": "night-1a2b", "torchyard/attempt": "1"}
POD_LABELS = {"app": "train", "role": "master"}


@pytest.mark.parametrize(
    ("name", "selector", "is_narrowed"),
    [
        ("train-master", {"app": "train", "role": "master"}, True),
        ("train-master", {"app": "train", "volcano.sh/task-spec": "master"}, True),
        ("train-master", {"volcano.sh/task-spec": "master"}, True),
        ("train-master", {"volcano.sh/job-name": "train"}, False),
        ("train-master", {"app": "store"}, False),
        ("train-master", {}, False),
        ("master", {"app": "train"}, False),
    ],
)
def test_service_selects_only_the_runs_pods(name: str, selector: dict[str, str], is_narrowed: bool) -> None:
    """A renamed Service that selects the job's pods by labels which all runs have selects by the run's labels too."""
    job = build_job(VOLCANO)
    job["spec"]["template"]["metadata"] = {"labels": POD_LABELS}
    service = build_service(name)
    service["spec"]["selector"] = selector
    (_, new_service), replaced, doubts = rename(VOLCANO, job, service)
    old_labels = {key: value.replace("train", NEW) if "job-name" in key else value for key, value in selector.items()}
    assert new_service["spec"]["selector"] == old_labels | (RUN_LABELS if is_narrowed else {})
    report = "Service train-master, spec.selector: it selects only this run's pods, by torchyard/run: night-1a2b"
    assert (report in str(replaced), doubts) == (is_narrowed, [])


def test_budget_selects_only_the_runs_pods() -> None:
    """A pod of two budgets cannot be evicted: that of a run selects only its own pods."""
    job = build_job(VOLCANO)
    job["spec"]["template"]["metadata"] = {"labels": POD_LABELS}
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "train"}}}
    budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "train-pdb"}, "spec": spec}
    (_, new_budget), _, _ = rename(VOLCANO, job, budget)
    assert new_budget["spec"]["selector"]["matchLabels"] == {"app": "train"} | RUN_LABELS


def test_service_of_other_pods_too_is_a_doubt() -> None:
    """A renamed Service that selects pods without the run's labels too stays as it is, with a doubt."""
    job = build_job(VOLCANO)
    job["spec"]["template"]["metadata"] = {"labels": POD_LABELS}
    template = {"metadata": {"labels": {"app": "train"}}, "spec": {"containers": [{"name": "a"}]}}
    board = {"kind": "Deployment", "metadata": {"name": "board"}, "spec": {"template": template}}
    service = build_service("train-svc")
    service["spec"]["selector"] = {"app": "train"}
    (_, _, new_service), _, (doubt,) = rename(VOLCANO, job, board, service)
    assert new_service["spec"]["selector"] == {"app": "train"}
    assert doubt.startswith("Service train-svc, spec.selector: it selects pods of the job by labels that the pods of")


def test_service_behind_an_ingress_follows() -> None:
    """The backend of an Ingress or a route is a Service by its name, and follows it; the host that users see stays."""
    backend = {"service": {"name": "train-board", "port": {"number": 6006}}}
    rules = [{"host": "train.example.com", "http": {"paths": [{"backend": backend}]}}]
    ingress = {"kind": "Ingress", "metadata": {"name": "train"}, "spec": {"rules": rules}}
    (_, _, new_ingress), _, _ = rename(INDEXED, build_job(INDEXED), build_service("train-board"), ingress)
    route = {"kind": "HTTPRoute", "metadata": {"name": "a"}, "spec": {"backendRefs": [{"name": "train-board"}]}}
    (_, _, new_route), _, _ = rename(INDEXED, build_job(INDEXED), build_service("train-board"), route)
    assert new_route["spec"]["backendRefs"] == [{"name": f"{NEW}-board"}]
    (rule,) = new_ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["name"] == f"{NEW}-board"
    assert (rule["host"], new_ingress["metadata"]["name"]) == ("train.example.com", "train")


def test_config_map_that_a_controller_may_create_is_a_doubt() -> None:
    """A ConfigMap whose name ends in the job's, and which the manifest does not create, is a doubt; others are not."""
    volumes = [{"configMap": {"name": name}} for name in ("rings-config-train", "train-settings", "settings")]
    document = build_job(VOLCANO, volumes=volumes)
    _, replaced, (doubt,) = rename(VOLCANO, document)
    assert replaced == []
    assert "volumes[0].configMap.name" in doubt
    assert "the ConfigMap rings-config-train stays as it is" in doubt


def test_config_map_that_the_controller_creates_follows() -> None:
    """Volcano's plugin svc creates a ConfigMap <job>-svc, which the pods may mount themselves."""
    volumes = [{"configMap": {"name": "train-svc"}}, {"configMap": {"name": "train-data"}}]
    (job,), _, doubts = rename(VOLCANO, build_job(VOLCANO, volumes=volumes))
    names = [volume["configMap"]["name"] for volume in job["spec"]["template"]["spec"]["volumes"]]
    assert (names, doubts) == ([f"{NEW}-svc", "train-data"], [])


@pytest.mark.parametrize("kind", ["ConfigMap", "Service"])
def test_name_that_begins_with_a_digit_follows(kind: str) -> None:
    """What precedes the name of an object in a script stays, whatever the name begins with."""
    companion = {"kind": kind, "metadata": {"name": "2024-train"}}
    script = f"kubectl get {kind.lower()} 2024-train -o yaml"
    assert rename_script(VOLCANO, script, companion) == f"kubectl get {kind.lower()} 2024-{NEW} -o yaml"


def test_claim_with_the_jobs_name_stays() -> None:
    """A claim holds data that outlives a run, so that it keeps its name, as do images and containers."""
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "train-data"}}
    volumes = [{"name": "train", "persistentVolumeClaim": {"claimName": "train-data"}}]
    documents = [build_job(VOLCANO, volumes=volumes), claim]
    assert rename(VOLCANO, *documents) == (documents, [], [])


@pytest.mark.parametrize(("subdomain", "new_subdomain", "doubts"), [("train-net", f"{NEW}-net", 0), ("net", "net", 1)])
def test_service_that_jobset_creates_follows(subdomain: str, new_subdomain: str, doubts: int) -> None:
    """The Service of a JobSet's own subdomain is the run's if its name contains the JobSet's, and else a doubt."""
    job = build_job(JOBSET, containers=[{"name": "a", "args": [f"--at=train-node-0-0.{subdomain}:1"]}])
    job["spec"]["network"] = {"subdomain": subdomain}
    (new_job,), _, found = rename(JOBSET, job)
    assert new_job["spec"]["network"]["subdomain"] == new_subdomain
    args = new_job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args == [f"--at={NEW}-node-0-0.{new_subdomain}:1"]
    assert len(found) == doubts


def test_pod_group_of_any_scheduler_follows() -> None:
    """A PodGroup with the job's name follows where a label, an annotation or the pod's spec names it."""
    group = {"kind": "PodGroup", "metadata": {"name": "train-group"}}
    job = build_job(INDEXED)
    job["spec"]["template"]["metadata"] = {
        "labels": {"kai.scheduler/subgroup-name": "train", "app": "train-group"},
        "annotations": {"scheduling.run.ai/pod-group-name": "train-group"},
    }
    job["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "train-group"}
    (new_job, new_group), _, _ = rename(INDEXED, job, group)
    metadata = new_job["spec"]["template"]["metadata"]
    assert metadata["annotations"] == {"scheduling.run.ai/pod-group-name": f"{NEW}-group"}
    assert metadata["labels"] == {"kai.scheduler/subgroup-name": "train", "app": "train-group"}
    assert new_job["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": f"{NEW}-group"}
    assert new_group["metadata"]["name"] == f"{NEW}-group"


def test_name_of_another_object_stays() -> None:
    """A claim or a volume that is called like a pod is another object; a key of a ConfigMap is not a field."""
    job = build_job(VOLCANO)
    job["spec"]["volumes"] = [{"volumeClaimName": "train-worker-0", "volumeHandle": "train-worker-0"}]
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"name": "train-worker-0"}}
    (new_job, new_config), _, doubts = rename(VOLCANO, job, config)
    assert (new_job, doubts) == (job, [])
    assert new_config["data"] == {"name": f"{NEW}-worker-0"}


def test_subdomain_follows_its_service() -> None:
    """The subdomain of the pods is the Service of the controller, or the companion, under its new name."""
    job = build_job(VOLCANO, subdomain="train")
    (new_job,), _, _ = rename(VOLCANO, job)
    assert new_job["spec"]["template"]["spec"]["subdomain"] == NEW
    (new_job, service), _, _ = rename(
        INDEXED, build_job(INDEXED, subdomain="train-hosts"), build_service("train-hosts")
    )
    assert new_job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"] == f"{NEW}-hosts"


@pytest.mark.parametrize(
    ("script", "doubt"),
    [
        ("RANK=$(hostname | cut -d- -f4-)", "takes a part of the pod's name by its number from the start"),
        ("RANK=$(echo $HOSTNAME | awk -F- '{print $3}')", "takes a part of the pod's name by its number"),
        ("IFS=- read -r job role i <<< $HOSTNAME", "takes a part of the pod's name by its number"),
        ("RANK=${HOSTNAME:13}", "`${HOSTNAME:13}` takes characters of the pod's name by their number from the start"),
        ("RANK=$(hostname | cut -c 14-)", "`hostname | cut -c 14-` takes characters of the pod's name"),
        ("python -c 'print(socket.gethostname()[13:])'", "`gethostname()[13:]` takes characters of the pod's name"),
        ("python -c \"ping('train-' + str(i) + '.hosts')\"", "`train-` stays as it is"),
        ("ping train-ps-0", "`train-ps-0` stays as it is"),
    ],
)
def test_uncertain_reference_is_a_doubt(script: str, doubt: str) -> None:
    """What may refer to the job, and cannot be replaced with certainty, is a finding that names the key."""
    job = build_job(VOLCANO, containers=[{"name": "a", "command": ["sh", "-c", script]}])
    (new_job,), replaced, doubts = rename(VOLCANO, job)
    assert (new_job, replaced, len(doubts)) == (job, [], 1)
    assert doubt in doubts[0]
    assert "Job train, spec.template.spec.containers[0].command[2]" in doubts[0]
    assert "manifest_name: keep" in doubts[0]


@pytest.mark.parametrize(
    ("variable", "value", "is_doubt"),
    [
        ("JOB_NAME", "train", True),
        ("JOBSET_NAME", "train", True),
        ("job_name", "train", True),
        ("WANDB_NAME", "train", False),
        ("JOB_NAME", "resnet", False),
    ],
)
def test_job_that_a_program_may_look_for_is_a_doubt(variable: str, value: str, is_doubt: bool) -> None:
    """A variable or a key of a ConfigMap with the job's name, which a program in the image may use, is a finding."""
    job = build_job(VOLCANO, containers=[{"name": "a", "env": [{"name": variable, "value": value}]}])
    config = {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": {variable: value}}
    documents, replaced, doubts = rename(VOLCANO, job, config)
    assert (documents, replaced) == ([job, config], [])
    assert len(doubts) == (2 if is_doubt else 0)


def test_claims_that_outlive_a_jobset_are_a_doubt() -> None:
    """Claims that JobSet names after itself, and keeps, would be empty ones in each run."""
    kept = {"templates": [], "retentionPolicy": {"whenDeleted": "Retain"}}
    job = build_job(JOBSET)
    job["spec"]["volumeClaimPolicies"] = [{"templates": []}, kept]
    _, _, doubts = rename(JOBSET, job)
    assert len(doubts) == 1
    assert doubts[0].startswith("JobSet train, spec.volumeClaimPolicies[1].retentionPolicy: the claims are named after")


def test_part_of_a_name_with_as_many_parts_is_no_doubt() -> None:
    """A script that counts the parts of the pod's name works if the new name has as many."""
    script = "RANK=$(hostname | cut -d- -f5)"
    job = JobReference("Job", "my-old-job", ("worker",), has_service=True)
    document = build_job(job, containers=[{"name": "a", "command": ["sh", "-c", script]}])
    assert rename(job, document) == ([document], [], [])


def test_new_name_may_contain_the_old_one() -> None:
    """A new name that begins with the old one is not replaced again."""
    document = build_job(PYTORCHJOB, containers=[{"name": "a", "args": ["train-worker-0 train-worker-1"]}])
    rename_references([document], [PYTORCHJOB], "train-worker-1")
    args = document["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args == ["train-worker-1-worker-0 train-worker-1-worker-1"]
