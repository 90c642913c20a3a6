"""What the pods of all launchers have in common, and manifests that users wrote."""
