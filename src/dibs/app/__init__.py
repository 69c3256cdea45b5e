"""What people hold in their hands: the app on both faces, its tasks, claims and contexts."""
