// What several runs of the same measurement say together.
#pragma once

#include <cstddef>
#include <span>

namespace verbena::bench {

// The middle of what was seen, and how far it spread.
struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  double mean = 0;
  double deviation = 0;  // standard deviation of the sample; 0 for a single value
  size_t count = 0;      // of the values

  // Whether min and max say how far apart others would be: those of a single value do not.
  bool has_spread() const { return count > 1; }
};

// Of at least one value; for an even number of them, the median is the mean of the two in the
// middle.
Summary summarize(std::span<const double> values);

inline double median(std::span<const double> values) { return summarize(values).median; }

}  // namespace verbena::bench
