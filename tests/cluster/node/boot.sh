#!/bin/sh
# The first process of a real node: boot.sh FOLDER, in pid, mount, network and host name namespaces of its own.
#
# Every process of the node is below it, pods as well, and every mount and link exists in its namespaces alone: when it
# is killed, the kernel takes all of them with it. It ends with its kubelet.
set -eu
cd "$1"
. ./node.env # NAME, LOGS, PROGRAMS...
hostname "$NAME"

# What kubelet and containerd have compiled in, or share with the machine, is the node's own here. Containers want
# mounts that propagate to them.
mount --make-rshared /
mount -t tmpfs -o mode=755 run /run
mount --bind log /var/log
mount --bind kubelet /var/lib/kubelet
mount --bind cni /var/lib/cni
# A node knows its own name, and so do the hostNetwork pods on it, to which the kubelet gives this file.
mount --bind hosts /etc/hosts
# Its own name server says no at once where the machine's, out of reach, would let every pull of an image wait. The file
# may be a link into /run, which is empty here.
resolver=$(readlink -m /etc/resolv.conf)
[ -e "$resolver" ] || install -D /dev/null "$resolver"
mount --bind resolv.conf "$resolver"

# The kubelet wants these set for the whole machine: it finds them as it wants them, and the machine stays as it is.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    shadow=/run/$(basename "${setting%=*}")
    echo "${setting#*=}" >"$shadow"
    mount --bind "$shadow" "/proc/sys/${setting%=*}"
done

# The kubelet would report every process of the machine that was ever killed for memory as its own.
mount --bind /dev/null /dev/kmsg

echo 1 >/proc/sys/net/ipv4/ip_forward
until ip route show default | grep -q .; do sleep 0.02; done # network.py plugs the node in

run() { # run COMPONENT COMMAND...: in the background, with a log of its own
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
