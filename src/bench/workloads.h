// The workloads that there are.
#pragma once

#include <span>
#include <string_view>

#include "src/bench/experiment/workload.h"

namespace verbena::bench {

// The first one is what an experiment file is about that does not say ('kind').
std::span<const Workload* const> workloads();
// By WorkloadTraits::name; null if there is none.
const Workload* find_workload(std::string_view name);
// The first workload that has such an axis; null if there is none.
const Workload* workload_with_axis(std::string_view axis_name);

}  // namespace verbena::bench
