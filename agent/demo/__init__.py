"""`armwise demo`: a real service, scripted users and models, and one page that fills while it runs.

world (questions, models, ratings) <--HTTP--> `armwise serve` <--HTTP--> story --> page
"""
