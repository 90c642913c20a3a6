"""Causes in the rendezvous, and in waiting for peers."""

from torchyard.model.causes.cause import Cause, CauseFacts, Distance, LogRule


class RendezvousCause(Cause):
    """The rendezvous, and waiting for peers."""

    RENDEZVOUS_TIMEOUT = CauseFacts("rendezvous-timeout", advice="check why the others did not start", retry=True)
    RENDEZVOUS_CLOSED = CauseFacts("rendezvous-closed", retry=True)
    RENDEZVOUS_STORE = CauseFacts("rendezvous-store", points_at_node=False)
    PORT_TAKEN = CauseFacts(
        "port-taken", advice="end the process that uses it, or choose another port", retry=True, points_at_node=False
    )
    ETCD_GONE = CauseFacts("etcd-gone", advice="check whether it runs, and whether this node can reach it", retry=True)
    ENDPOINT_NAME = CauseFacts("endpoint-name", advice="check the name, its Service and DNS", retry=True)
    RENDEZVOUS_CONNECTION = CauseFacts(
        "rendezvous-connection", advice="check whether its host runs, and the firewall", retry=True
    )
    PEER_TIMEOUT = CauseFacts("peer-timeout", advice="look for the rank that is missing or slow", retry=True)


RENDEZVOUS_RULES = (
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_TIMEOUT,
        symptom="waited for the other nodes, but only {joined} of {total} joined in time",
        patterns=(r"waiting for (?:clients|workers)\. (?P<joined>\d{1,6})/(?P<total>\d{1,6})",),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_TIMEOUT,
        symptom="waited for the other nodes, but too few joined in time",
        patterns=("RendezvousTimeoutError",),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_CLOSED,
        symptom="found the rendezvous closed: its id was used before, or the others had already ended",
        patterns=("RendezvousClosedError", "RendezvousGracefulExitError"),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_STORE,
        symptom="cannot serve the rendezvous, because its address is not one of this host ({evidence})",
        patterns=(r"failed to listen on any local.{0,300}(?:errno: 99\b|EADDRNOTAVAIL)",),
        own_advice="name an address of the first node in MASTER_ADDR or in the rendezvous endpoint",
    ),
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_STORE,
        symptom="may not serve the rendezvous at its port ({evidence})",
        patterns=(r"failed to listen on any local.{0,300}(?:errno: 13\b|EACCES)",),
        own_advice="choose a port of 1024 or above",
    ),
    LogRule(
        cause=RendezvousCause.PORT_TAKEN,
        symptom="found its port taken",
        patterns=(
            "EADDRINUSE",
            "[Aa]ddress already in use",
            "failed to listen on any local",
            "another process is utilizing it",
            "Only one usage of each socket address",
        ),
    ),
    LogRule(
        cause=RendezvousCause.ETCD_GONE,
        symptom="got no response from etcd",
        patterns=("connection to etcd has failed", "EtcdConnectionFailed", "EtcdException", "url: /v2/"),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.ENDPOINT_NAME,
        symptom="could not resolve the name of a host that it was to reach by ssh ({evidence})",
        patterns=("ssh: Could not resolve hostname",),
        own_advice="check the names of the hosts, and that theirs are served before it starts",
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.ENDPOINT_NAME,
        symptom="could not resolve the rendezvous endpoint's name",
        patterns=(
            "addresses of .{1,200} cannot be retrieved",
            "[Nn]ame or service not known",
            "failure in name resolution",
        ),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.RENDEZVOUS_CONNECTION,
        symptom="could not reach the rendezvous endpoint",
        patterns=(
            r"Rendezvous(?:Connection|State)?Error",
            "client socket has timed out",
            "DistNetworkError",
            "failed to connect to any network address",
            r"connect\(\) timed out",
            "Failed to connect to client mesh master",
        ),
        distance=Distance.WAIT,
    ),
    LogRule(
        cause=RendezvousCause.PEER_TIMEOUT,
        symptom="waited for a peer until it timed out",
        patterns=(
            "Socket Timeout",
            r"wait timeout after \d",
            "Timeout waiting for key",
            r"[Tt]imed out waiting \d{1,9} ?ms",
            "timeout caused pair closure",
            "Timed out initializing process group",
            "Getting socket times out",
            "hccl fftsplus task timeout",
            "execution of the Notify register times out",
            "DistStoreError(?!: use_libuv)",
        ),
        distance=Distance.WAIT,
    ),
)

# The store itself has ended, which its exit code shows.
STORE_ENDED = LogRule(
    cause=RendezvousCause.ETCD_GONE, symptom="ended before the job", own_advice="check its log and its memory"
)
