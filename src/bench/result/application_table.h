// The results of an application (apps/) as a table for the terminal: one line per point, with a
// column for each axis on which points differ from what is usual, and for each kind of operation.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/bench/experiment/axis.h"
#include "src/bench/result/point_result.h"

namespace verbena::bench {

// One of WorkloadTraits::metrics, or what `text` says.
struct MetricColumn {
  std::string_view name;
  size_t metric = 0;
  std::string (*text)(const PointResult&) = nullptr;
};

// The axes named in `always`, and each on which points differ from what is usual.
std::vector<const Axis*> shown_axes(const std::vector<PointResult>& results,
                                    std::span<const std::string_view> always);
// A point's value on an axis, for a cell: "-" where it means nothing.
std::string axis_text(const Axis& axis, const Point& point);
// "-" where there is none.
std::string metric_text(const PointResult& result, size_t metric);

// `legend` says what `columns` mean, and `other_side` what operations cost there.
std::string application_table(const std::vector<PointResult>& results,
                              std::span<const std::string_view> always,
                              std::span<const MetricColumn> columns, std::string_view legend,
                              std::string_view other_side = "and none on the other side");

}  // namespace verbena::bench
