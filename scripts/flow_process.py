"""The process of a flow run: Prefect's engine, which a deployment of `make up` names as its command.

Without a command Prefect's worker starts three programs one after the other, each of which imports Prefect: the first
prepares the folder of the code in the second, and then becomes the engine. The engine alone also takes a deployment's
pull steps. As without a command, the process has its own session: signals to the worker's group do not reach it.
"""

import os
import runpy

if __name__ == "__main__":
    os.setsid()
    try:
        runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        if error.code:
            # The engine also ends so if its run is cancelled before the flow starts. Only then is the import needed.
            from torchyard.tasks.recovery import complete_cancel

            complete_cancel(os.environ["PREFECT__FLOW_RUN_ID"])
        raise
