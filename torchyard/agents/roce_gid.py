"""The sh text with which a pod finds NCCL_IB_GID_INDEX: on RoCE it differs from node to node, and from pod to pod.

NCCL from 2.21 on (torch 2.5) finds it by itself, port by port, and so nothing fails here. A fabric that must not go on
without RDMA sets NCCL_NET=IB: then NCCL itself fails, and says why.
"""

from shlex import quote

# Builtins alone: an image need not have grep. No `$(` and no `$$`: the kubelet would read them as its own.
# A slot that is empty, or of another network namespace, cannot be read: the kernel answers EINVAL.
_FIND_GID_FUNCTIONS = """\
gid_read() { read -r gid_line 2>/dev/null <"$1"; }
gid_fits() {
  gid_read "$1/gids/$2" || return 1
  case "${NCCL_IB_ADDR_FAMILY:-AF_INET} $gid_line" in
  "AF_INET 0000:0000:0000:0000:0000:ffff:"*) ;;
  "AF_INET6 0000:0000:0000:0000:0000:"* | "AF_INET6 fe80:"* | "AF_INET6 ff"*) return 1 ;;
  "AF_INET6 "*) ;;
  *) return 1 ;;
  esac
  gid_read "$1/gid_attrs/types/$2" && [ "$gid_line" = "RoCE v2" ] || return 1
  ! gid_read "$1/gid_attrs/ndevs/$2" || [ -e "${1%/infiniband/*}/net/$gid_line" ]
}
gid_find() {
  gid_common=any gid_seen=
  for gid_port in "$@"; do
    gid_read "$gid_port/state" && [ "$gid_line" = "4: ACTIVE" ] || continue
    gid_own= gid_both=' '
    for gid_index in "$gid_port"/gids/*; do
      gid_index=${gid_index##*/}
      gid_fits "$gid_port" "$gid_index" || continue
      gid_own="$gid_own $gid_index"
      case $gid_common in any | *" $gid_index "*) gid_both="$gid_both$gid_index " ;; esac
    done
    gid_common=$gid_both gid_seen="$gid_seen${gid_seen:+, }${gid_port##*/infiniband/} has${gid_own:- none}"
  done
  case $gid_common in
  any | ' ' | ' '*' '*' ')
    echo "torchyard: NCCL_IB_GID_INDEX stays unset, so NCCL chooses (before 2.21 always 0): no one index is RoCE v2" \\
      "with an ${NCCL_IB_ADDR_FAMILY:-AF_INET} address on every active port (${gid_seen:-there is none});" \\
      "narrow NCCL_IB_HCA or set the index" >&2
    ;;
  *)
    gid_common=${gid_common# }
    export NCCL_IB_GID_INDEX="${gid_common% }"
    ;;
  esac
}
"""


def gid_script(hca: str, root: str = "/sys") -> str:
    """Lines that export NCCL_IB_GID_INDEX where one index is right for all of `hca`'s active ports.

    `hca` is as in NCCL_IB_HCA: prefixes with commas between, or exact names after `=`; each may have a `:port`.
    Right is RoCE v2, of the family that NCCL_IB_ADDR_FAMILY says (AF_INET, as in NCCL, or AF_INET6), and on one of the
    pod's own interfaces. Where nothing or more than one index is right, one line on stderr tells what each port has.
    An index that is set already, by whomever, is left as it is.
    """
    return (
        f'{_FIND_GID_FUNCTIONS}[ -n "${{NCCL_IB_GID_INDEX+set}}" ] || gid_find {" ".join(_port_patterns(hca, root))}\n'
    )


def _port_patterns(hca: str, root: str) -> list[str]:
    """Patterns of the ports' folders."""
    found = []
    for each in hca.removeprefix("=").split(","):
        name, _, port = each.partition(":")
        device = f"{quote(f'{root}/class/infiniband/{name}')}{'' if hca.startswith('=') else '*'}"
        found.append(f"{device}/ports/{quote(port) if port else '*'}")
    return found
