"""Plan the clock of every instruction of a pipeline-parallel training iteration."""
