#!/bin/sh
# An OCI hook: userland.sh TABLE, run by runc in the mount namespace of each new container, before it enters its root.
#
# A container whose image has a file /.userland gets folders of the machine, read-only: each line of the table is a folder
# of the machine, a tab, and its path in the container. Standard input is runc's state of the container, in JSON.
set -eu
root=$(sed 's/.*"bundle":"\([^"]*\)".*/\1/')/rootfs
[ -e "$root/.userland" ] || exit 0
while IFS='	' read -r here there; do
    mkdir -p "$root$there"
    mount -o bind,ro "$here" "$root$there"
done <"$1"
