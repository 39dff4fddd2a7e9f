"""Deletes what no retained commit needs: takes stock of a job, decides, and sends the requests."""
