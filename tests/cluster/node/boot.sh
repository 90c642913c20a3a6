#!/bin/sh
# The first process of a real node: boot.sh FOLDER, in its own pid, mount, network and host name namespaces.
#
# Every process of the node is its descendant, pods as well, and every mount and link exists only in its namespaces: when
# it is killed, the kernel removes all of them. It exits with its kubelet.
set -eu
cd "$1"
. ./node.env # NAME, LOGS, PROGRAMS...
hostname "$NAME"

# Paths that are compiled into kubelet and containerd, or shared with the machine, are the node's own here. Containers
# need mounts that propagate to them.
mount --make-rshared /
mount -t tmpfs -o mode=755 run /run
mount --bind log /var/log
mount --bind kubelet /var/lib/kubelet
mount --bind cni /var/lib/cni
# A node resolves its own name, and so do its hostNetwork pods, to which the kubelet gives this file.
mount --bind hosts /etc/hosts
# Its own name server answers NXDOMAIN at once; the machine's cannot be reached from here, and every pull of an image would
# wait for it. The file may be a link into /run, which is empty here.
resolver=$(readlink -m /etc/resolv.conf)
[ -e "$resolver" ] || install -D /dev/null "$resolver"
mount --bind resolv.conf "$resolver"

# The kubelet requires these settings and would write them for the whole machine. It reads the shadow files instead, and
# the machine's settings do not change.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    shadow=/run/$(basename "${setting%=*}")
    echo "${setting#*=}" >"$shadow"
    mount --bind "$shadow" "/proc/sys/${setting%=*}"
done

# The kubelet would report every process of the machine that was ever killed for memory as its own.
mount --bind /dev/null /dev/kmsg

echo 1 >/proc/sys/net/ipv4/ip_forward
until ip route show default | grep -q .; do sleep 0.02; done # until network.py has connected the node

run() { # run COMPONENT COMMAND...: in the background, with its own log
    component=$1
    shift
    TORCHYARD_COMPONENT=$NAME-$component "$@" >>"$LOGS/$NAME-$component.log" 2>&1 &
}

run containerd containerd --config containerd.toml
run coredns "$COREDNS" -conf Corefile
run kube-proxy "$KUBE_PROXY" --config kube-proxy.yaml
until ctr version >/dev/null 2>&1; do sleep 0.02; done
ctr --namespace k8s.io images import "$IMAGES"
TORCHYARD_COMPONENT=$NAME-kubelet "$KUBELET" --config kubelet.yaml --kubeconfig kubeconfig --node-ip "$ADDRESS" \
    --node-labels "$LABELS"
