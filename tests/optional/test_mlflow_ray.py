"""MLflow and Ray, too large for every run of the tests."""

import pytest

from joulery.training import CallbackLoop

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages themselves


def test_mlflow_keeps_the_figures(world, tmp_path, monkeypatch):
    """If this fails, a run of MLflow lacks the energy."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    from joulery.integrations.mlflow import MlflowSink

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run() as run:
        loop = CallbackLoop(meter=world.meter, sinks=[MlflowSink()])
        loop.begin()
        for _ in range(4):
            loop.begin_step()
            world.load()
            loop.end_step()
            loop.log()
        measured = loop.end()
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "joulery/joules")
    assert [metric.step for metric in history] == [1, 2, 3, 4, 4]
    assert history[-1].value == pytest.approx(measured.joules, rel=0.03)


def test_results_of_ray_tune_carry_the_energy(tmp_path):
    """If this fails, a search with Ray Tune does not see what a trial spends."""
    import ray
    from ray import tune

    def train(config):
        from joulery.clock import VirtualClock
        from joulery.hardware import SimulatedGpu, catalog
        from joulery.integrations.ray import RayTraining
        from joulery.metering import Meter

        clock = VirtualClock()
        board = catalog.board("V100")
        gpu = SimulatedGpu(board, clock)
        work = catalog.workload("resnet50", board)
        with RayTraining(report=tune.report, meter=Meter([gpu], clock=clock)) as training:
            for _ in range(3):
                for _ in range(config["steps"]):
                    gpu.run(work)
                    training.step()
                training.report({"loss": 1.0 / config["steps"]})

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        tuner = tune.Tuner(
            train,
            param_space={"steps": tune.grid_search([2, 8])},
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        )
        results = tuner.fit()
    finally:
        ray.shutdown()
    assert not results.errors
    joules = {result.config["steps"]: result.metrics["joulery/joules"] for result in results}
    assert joules[8] > 3 * joules[2] > 0
