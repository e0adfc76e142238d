"""Steps of JAX, with a simulated board under load."""

import pytest


def step_of(world):
    """A jitted step with a donated state, and the board's part of it."""
    import jax  # here, since it takes a second that not every test process should pay for

    update = jax.jit(lambda state, x: state - 0.1 * x.mean(), donate_argnums=0)

    def step(state, x):
        world.load()
        return update(state, x)

    return step


def test_steps_are_measured_and_tuned(world):
    """If this fails, a training of JAX is not measured, or its power not tuned."""
    import jax.numpy as jnp

    from joulery.integrations.jax import JaxStep

    run = world.run()
    state, batch = jnp.zeros(3), jnp.ones(8)
    with JaxStep(step_of(world), run, meter=world.meter, sinks=[world]) as step:
        for _ in range(400):
            state = step(state, batch)
    assert float(state[0]) == pytest.approx(-40.0, rel=1e-3)
    world.check(step.measurement, steps=400)
    assert run.total_steps == 400
    assert run.result.energy_saving > 0.05


def test_an_error_in_the_step_is_the_users_and_the_run_is_closed(world):
    """If this fails, an exception of a step is swallowed, or the limit stays lowered."""
    from joulery.integrations.jax import JaxStep

    def broken(_):
        raise ArithmeticError("of the user")

    run = world.run()
    with pytest.raises(ArithmeticError), JaxStep(broken, run, meter=world.meter) as step:
        step(1)
    assert step.measurement is not None
