"""Training: Lightning modules around the model, what happens at each epoch, and the experiment from base
model to comparison."""
