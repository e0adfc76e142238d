"""The Bayesian policy: explore what may pay, stop what will not, keep to what is best."""
