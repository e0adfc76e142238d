"""Where recurring runs ask for decisions and report: a store on this machine, or a server."""
