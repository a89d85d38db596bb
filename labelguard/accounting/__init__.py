"""The exact cost of releases about one labeler, and the noise that a budget allows.

One module a mechanism, with the same names for the same things (`delta`, `epsilon`, `calibrate`):
`randomized_response` for labels in {0, 1}, `blocks` for labels that are drawn together, `gaussian`
for sums with Gaussian noise and `ball` for one sum with ball noise. All are priced by closed forms
of their k-fold composition, never by a general-purpose accountant: dp-accounting's `PLDAccountant`
ignores the count of a `RandomizedResponseDpEvent` (0.6.0) and so returns almost no noise, and its
REPLACE_ONE relation doubles the sensitivity of a Gaussian.

Gradient methods have no closed form: `subsampled` (runs of user-wise DP-SGD) and `example_level`
(of single records, by the smaller of `mixture` and `group`) stand on the privacy loss distributions
of dp-accounting, which err upward. `gaussian` knows what the noise of a language model leaves out.

`joint` prices all of them together.

Importing these modules loads the standard library and numpy only.
"""
