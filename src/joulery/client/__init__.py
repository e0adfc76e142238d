"""Where recurring runs get decisions and report: a store on this machine, or a server."""
