"""The platform in real containers, from the real docker-compose.yml: `make test-compose`. It needs root and docker.

No image can be pulled where tests run, so images of others are built from the locked artifacts, with the paths, users
and start commands of the originals (``images.py``); our own are built from their Dockerfiles.
"""
