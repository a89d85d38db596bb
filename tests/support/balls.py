"""The price of ball noise by Arb: its Bessel functions and its rigorous integration."""

import flint


def delta_of_ball(scale, epsilon, dimension):
    """δ(ε) by the formula as it stands, at every real ε; an enclosure."""
    flint.ctx.prec = 200
    a, spent = 1 / (2 * flint.arb(scale)), flint.arb(epsilon)
    if spent < 0:
        return 1 - spent.exp() + spent.exp() * delta_of_ball(scale, -spent, dimension)
    if spent >= 2 * a:
        return flint.arb(0)
    nu = flint.arb(dimension - 2) / 2

    def factor(order):
        gamma = (order + flint.arb("0.5")).gamma()
        return gamma / flint.arb.pi().sqrt() * (2 / a) ** order * a.bessel_k(order)

    low, high = factor(nu), factor(nu + 1)

    def density(t):
        sine = t.sin()
        return sine ** (dimension - 2) * (a * t.cos()).exp() * (high + sine * sine * low)

    def lost(t, _):
        return density(t) * (1 - (spent - 2 * a * t.cos()).exp())

    total = flint.acb.integral(lambda t, _: density(t), 0, flint.arb.pi())
    return (flint.acb.integral(lost, 0, (spent / (2 * a)).acos()) / total).real
