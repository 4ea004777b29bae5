"""``python -m changelog.sources.cdc``: run the service."""

import sys

from changelog.sources.cdc.service import main

sys.exit(main())
