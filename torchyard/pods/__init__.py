"""Pods as all launchers build them, and manifests that users wrote."""
