"""Choose the batch size of a job that is trained again and again."""
