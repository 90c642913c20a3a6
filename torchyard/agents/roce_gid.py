"""The shell text with which a pod finds NCCL_IB_GID_INDEX: on RoCE it differs from node to node and from pod to pod.

NCCL 2.21 and newer (torch 2.5) finds it by itself, port by port, so the script never fails. A fabric that must not run
without RDMA sets NCCL_NET=IB: then NCCL itself fails, and reports why.
"""

from shlex import quote

# Only builtins: an image need not have grep. No `$(` and no `$$`, which the kubelet would expand: so `eval` joins the
# signs of an arithmetic expression, whose words were checked before.
# A slot that is empty, or of another network namespace, cannot be read: the kernel returns EINVAL.
_RANGE_FUNCTIONS = """\
gid_math() { eval "gid_number=\\$""(($1))"; }
gid_read_range() {
  gid_bits=${1#*/} gid_words=${1%%/*} gid_base=
  case $gid_bits in [0-9] | [1-9][0-9] | 1[0-2][0-9]) ;; *) return 1 ;; esac
  case "${NCCL_IB_ADDR_FAMILY:-AF_INET} $gid_bits" in
  "AF_INET "[0-9] | "AF_INET "[12][0-9] | "AF_INET 3"[0-2]) gid_expand_ipv4 ;;
  "AF_INET6 129") return 1 ;;
  "AF_INET6 "*) gid_expand_ipv6 ;;
  *) return 1 ;;
  esac
}
gid_expand_ipv4() {
  gid_rest=$gid_words. gid_words=0:0:0:0:0:65535
  for gid_sign in : '*256+' : '*256+'; do
    gid_octet=${gid_rest%%.*} gid_rest=${gid_rest#*.}
    case $gid_octet in [0-9] | [1-9][0-9] | 1[0-9][0-9] | 2[0-4][0-9] | 25[0-5]) ;; *) return 1 ;; esac
    gid_words=$gid_words$gid_sign$gid_octet
  done
  gid_math "$gid_bits + 96" && gid_bits=$gid_number
  [ -z "$gid_rest" ]
}
gid_expand_ipv6() {
  gid_base=0x gid_rest=${gid_words#*::} gid_zeros=0
  case $gid_words in
  *::*)
    gid_first=${gid_words%%::*}
    while gid_words=${gid_first:-0}:$gid_zeros:${gid_rest:-0}; case $gid_words in *:*:*:*:*:*:*:*) false ;; esac; do
      gid_zeros=$gid_zeros:0
    done
    ;;
  esac
  case :$gid_words: in
  *[!0-9A-Fa-f:]* | *::* | *[!:][!:][!:][!:][!:]* | *:*:*:*:*:*:*:*:*:*:*) return 1 ;;
  *:*:*:*:*:*:*:*:*:*) ;;
  *) return 1 ;;
  esac
}
gid_in_range() {
  gid_left=$gid_bits gid_address=$1: gid_rest=$gid_words:
  while [ "$gid_left" -gt 0 ]; do
    gid_math "(0x${gid_address%%:*} ^ ($gid_base${gid_rest%%:*})) >> ($gid_left < 16 ? 16 - $gid_left : 0)"
    [ "$gid_number" = 0 ] || return 1
    gid_math "$gid_left - 16"
    gid_left=$gid_number gid_address=${gid_address#*:} gid_rest=${gid_rest#*:}
  done
}
"""
_FIND_FUNCTIONS = """\
gid_say() { echo "torchyard: $*" >&2; }
gid_read() { read -r gid_line 2>/dev/null <"$1"; }
gid_fits() {
  gid_read "$1/gids/$2" || return 1
  case "${NCCL_IB_ADDR_FAMILY:-AF_INET} $gid_line" in
  *" "*[!0-9a-f:]*) return 1 ;;
  "AF_INET 0000:0000:0000:0000:0000:ffff:"*) ;;
  "AF_INET6 0000:0000:0000:0000:0000:"* | "AF_INET6 fe80:"* | "AF_INET6 ff"*) return 1 ;;
  "AF_INET6 "*) ;;
  *) return 1 ;;
  esac
  gid_in_range "$gid_line" || return 1
  gid_read "$1/gid_attrs/types/$2" && [ "$gid_line" = "RoCE v2" ] || return 1
  ! gid_read "$1/gid_attrs/ndevs/$2" || [ -e "${1%/infiniband/*}/net/$gid_line" ]
}
gid_look() {
  gid_common=any gid_seen= gid_ethernet=
  for gid_port in "$@"; do
    gid_read "$gid_port/state" && [ "$gid_line" = "4: ACTIVE" ] || continue
    gid_own= gid_both=' '
    if gid_read "$gid_port/link_layer" && [ "$gid_line" = InfiniBand ]; then
      gid_own=' none, as InfiniBand'
    else
      gid_ethernet=yes
      for gid_index in "$gid_port"/gids/*; do
        gid_index=${gid_index##*/}
        gid_fits "$gid_port" "$gid_index" || continue
        gid_own="$gid_own $gid_index"
        case $gid_common in any | *" $gid_index "*) gid_both="$gid_both$gid_index " ;; esac
      done
    fi
    gid_common=$gid_both gid_seen="$gid_seen${gid_seen:+, }${gid_port##*/infiniband/} has${gid_own:- none}"
  done
  [ "$gid_common" != any ] || gid_common=' '
}
gid_find() {
  gid_bits=0 gid_words=
  if [ -n "${NCCL_IB_ADDR_RANGE:-}" ] && ! gid_read_range "$NCCL_IB_ADDR_RANGE"; then
    gid_say "NCCL_IB_ADDR_RANGE=$NCCL_IB_ADDR_RANGE is removed: it is not ADDRESS/BITS, of the family" \\
      "${NCCL_IB_ADDR_FAMILY:-AF_INET}; without BITS, NCCL 2.21 and 2.22 crash"
    unset NCCL_IB_ADDR_RANGE
    gid_bits=0
  fi
  gid_look "$@"
  gid_what="RoCE v2 with an ${NCCL_IB_ADDR_FAMILY:-AF_INET} address${NCCL_IB_ADDR_RANGE:+ in $NCCL_IB_ADDR_RANGE}"
  gid_what="$gid_what on every active port (${gid_seen:-there is none})"
  if [ -n "${NCCL_IB_GID_INDEX+set}" ]; then
    gid_judge
  else
    gid_choose
  fi
}
gid_judge() {
  case $NCCL_IB_GID_INDEX in '' | -1) return 0 ;; esac
  if [ -n "$gid_seen" ] && [ -z "$gid_ethernet" ]; then
    gid_say "NCCL_IB_GID_INDEX=$NCCL_IB_GID_INDEX is removed: all active ports are InfiniBand, which needs none"
    unset NCCL_IB_GID_INDEX
    return 0
  fi
  case $gid_common in
  *" $NCCL_IB_GID_INDEX "*) ;;
  *) gid_say "NCCL_IB_GID_INDEX=$NCCL_IB_GID_INDEX stays as it was set, but is not $gid_what" ;;
  esac
}
gid_choose() {
  gid_least=
  for gid_index in $gid_common; do
    [ -n "$gid_least" ] && [ "$gid_least" -le "$gid_index" ] || gid_least=$gid_index
  done
  case $gid_common in
  ' ')
    gid_say "NCCL_IB_GID_INDEX stays unset, so NCCL chooses (before 2.21 always 0): no one index is $gid_what;" \\
      "narrow NCCL_IB_HCA or set the index"
    return 0
    ;;
  ' '*' '*' ')
    gid_say "NCCL_IB_GID_INDEX=$gid_least is the lowest index that is $gid_what; NCCL_IB_ADDR_RANGE chooses another"
    ;;
  esac
  export NCCL_IB_GID_INDEX="$gid_least"
}
"""


def gid_script(hca: str, root: str = "/sys") -> str:
    """Lines that export NCCL_IB_GID_INDEX if one index is right for all active ports of `hca`.

    `hca` is as in NCCL_IB_HCA: comma-separated prefixes, or exact names after `=`; each may have a `:port`. An index is
    right if it is RoCE v2, of the family in NCCL_IB_ADDR_FAMILY (AF_INET, NCCL's default, or AF_INET6), in
    NCCL_IB_ADDR_RANGE if that is set, and on one of the pod's own interfaces. Of several the lowest is taken, as NCCL
    does. An index that is already set stays, except where all ports are InfiniBand. The script prints one line on
    stderr if an index is wrong, missing or ambiguous.
    """
    return f"{_RANGE_FUNCTIONS}{_FIND_FUNCTIONS}gid_find {' '.join(_port_patterns(hca, root))}\n"


def _port_patterns(hca: str, root: str) -> list[str]:
    """Shell patterns of the ports' folders in sysfs."""
    is_exact = hca.startswith("=")
    patterns = []
    for selector in hca.removeprefix("=").split(","):
        name, _, port = selector.partition(":")
        device = quote(f"{root}/class/infiniband/{name}")
        if not is_exact:
            device += "*"
        port_pattern = quote(port) if port else "*"
        patterns.append(f"{device}/ports/{port_pattern}")
    return patterns
