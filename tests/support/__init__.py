"""What the tests share: servers, faces, faults, and ways to wait."""
