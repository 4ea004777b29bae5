"""The serving layer: publication, merged SQL, the boundary, and the client."""
