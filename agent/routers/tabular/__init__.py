"""Routers on feature tables: scikit-learn and xgboost."""
