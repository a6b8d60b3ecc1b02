// Measures many points independently of each other, each by `verbena bench` or
// `verbena verbs` in a process of its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/reproduce/catalog.h"
#include "src/reproduce/measurements.h"
#include "verbena/status.h"

namespace verbena::cli {

// Of one device.
struct PointList {
  std::string device;
  std::vector<reproduce::WantedPoint> points;
  uint32_t runs = 1;  // of each point, of simulated ones with seeds of their own
  // Behind these, one run on each further variant of a simulated device's profile.
  uint32_t variants = 1;
  reproduce::Measurements* measurements = nullptr;  // what is found, or why not, goes there

  uint32_t all_runs() const { return runs + variants - 1; }
  // On which variant a run is.
  uint32_t variant_of(uint32_t run) const { return run < runs ? 0 : run - runs + 1; }
};

// Up to `jobs` at a time, fewer where their memory would not suffice, with progress on standard
// error. An error: nothing can be measured at all, such as with a device that there is not.
// Ctrl-C ends it early; bench::interrupted() tells.
Status measure_points(const std::vector<PointList>& lists, uint32_t jobs);

}  // namespace verbena::cli
