"""A profile with everything that its hardware file adds, merged once: what launchers plan."""

from torchyard.model.hardware import Expect
from torchyard.model.pod import EnvValue, TolerationItem
from torchyard.model.profile import Profile

GPU_RESOURCE = "nvidia.com/gpu"  # the GPUs of a profile without a hardware file


class ResolvedProfile(Profile):
    """A profile in which pod, env, mounts, resources and setup include those of the fabric.

    The other fields are those of the chosen fabric (torchyard/model/hardware.py), without a fabric their defaults.
    `resolve` creates it. Settings of the profile take precedence over those of the fabric.
    """

    expect: Expect | None = None
    find_gid: bool = False
    device_plugin: str | None = None
    compute_domain: str | None = None
    claim_templates: tuple[str, ...] = ()

    @property
    def gpu_resource(self) -> str:
        """The GPUs' resource name in Kubernetes, which is also the key of their nodes' taint."""
        return self.hardware.gpus.resource if self.hardware else GPU_RESOURCE

    @property
    def requests(self) -> dict[str, str]:
        """The resources that a pod requests, under Kubernetes' names, without those that are 0."""
        return self._rename_resources(self.resources)

    @property
    def limits(self) -> dict[str, str]:
        """The limits that the pod settings name, under Kubernetes' names, without those that are 0."""
        return self._rename_resources(self.pod.limits)

    @property
    def node_labels(self) -> dict[str, str]:
        """The labels of nodes that the pods may use: those of the hardware, and the pods' node selector."""
        hardware_labels = self.hardware.match if self.hardware else {}
        return hardware_labels | self.pod.node_selector

    @property
    def tolerations(self) -> tuple[TolerationItem, ...]:
        """The taints to tolerate, those of the GPUs by their key.

        Tolerating all would keep pods on dead nodes, and put them on control planes.
        """
        gpu_taints: list[TolerationItem] = [self.gpu_resource] if self.gpu_resource in self.requests else []
        return tuple(dict.fromkeys((*gpu_taints, *self.pod.tolerations)))

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of the pods' resource claims, each that of its template.

        The first is the fabric's ComputeDomain, if it has one: the domain creates a template of its own name.
        """
        return (*([self.compute_domain] if self.compute_domain else []), *self.claim_templates)

    def _rename_resources(self, amounts: dict[str, str]) -> dict[str, str]:
        """Amounts under Kubernetes' names, without those that are 0: `gpus` becomes the resource of the hardware."""
        return {
            self.gpu_resource if name == "gpus" else name: amount for name, amount in amounts.items() if amount != "0"
        }


def resolve(profile: Profile) -> ResolvedProfile:
    """Merge the settings of the profile over those of its fabric."""
    fabric = profile.network
    fields = dict(profile)
    if fabric:
        env: dict[str, EnvValue] = {}
        env |= fabric.env
        fields |= {
            "pod": profile.pod.merge_over(fabric.pod),
            "env": env | profile.env,
            "mounts": fabric.mounts | profile.mounts,
            "setup": (*fabric.setup, *profile.setup),
            "expect": fabric.expect,
            "find_gid": fabric.find_gid,
            "device_plugin": fabric.device_plugin,
            "compute_domain": fabric.compute_domain,
            "claim_templates": fabric.claim_templates,
        }
    if profile.has_image_entrypoint:
        fields["on_hang"] = "off"  # torchyard's command starts the recorder
    fields["resources"] = fields["pod"].resources | profile.resources
    # All values were validated with the profile.
    resolved = ResolvedProfile.model_construct(profile.model_fields_set, **fields)
    return resolved.with_positions(profile.positions).with_manifest_warnings(profile.manifest_warnings)
