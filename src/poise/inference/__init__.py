"""From images to answers: the predictor, the classifier and the pipeline."""
