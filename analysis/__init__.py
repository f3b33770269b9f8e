"""What heads do and how much they matter: functions of (model, batches) that give a HeadMap."""
