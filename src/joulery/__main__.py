"""``python -m joulery`` is ``joulery``."""

import sys

from joulery.cli import main

sys.exit(main())
