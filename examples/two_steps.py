"""Two steps of torchyard in your own flow: it checks whether a profile can run, without starting a job."""

from prefect import flow

from torchyard.tasks import PreflightError, load_profile, plan, preflight


@flow
def can_it_run(profile: str = "digits-local") -> bool:
    """Return whether all checks pass. A failed check has a remedy."""
    try:
        checks = preflight(plan(load_profile(profile)))
    except PreflightError as error:
        checks = error.checks
    for check in checks:
        print(f"{check.verdict:8}{check.where}: {check.what} {check.remedy}")
    return all(check.verdict != "failed" for check in checks)


if __name__ == "__main__":
    print(can_it_run())
