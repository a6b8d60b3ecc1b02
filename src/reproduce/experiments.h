// The points of the experiment files that checks speak of.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "src/bench/experiment/point.h"
#include "src/reproduce/check.h"
#include "verbena/status.h"

namespace verbena::reproduce {

// bench::key_of(): equal for points that measure the same.
using PointKey = std::vector<uint64_t>;

class Experiments {
 public:
  explicit Experiments(std::string folder) : folder_(std::move(folder)) {}

  // All of "msgproto-fig10a", in the order of its file; kNotFound, kInvalidArgument.
  Result<std::vector<bench::Point>> points(const std::string& name);
  // Those that `uses` leaves and the selection has; kInvalidArgument where there is none.
  Result<std::vector<bench::Point>> points(const Selection& selection,
                                           const std::map<std::string, Use>& uses);

 private:
  std::string folder_;
  std::map<std::string, std::vector<bench::Point>> read_;
};

// Every selection of a part.
std::vector<const Selection*> selections_of(const Part& part);

}  // namespace verbena::reproduce
