"""What `record-journals` and `check-upgrade` share: a scripted model, and a workspace in which threads run."""
