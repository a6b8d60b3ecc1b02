#include "src/bench/hashtable/hashtable_table.h"

#include <array>
#include <string_view>

#include "src/bench/result/application_table.h"

namespace verbena::bench {

std::string hashtable_table(const std::vector<PointResult>& results) {
  constexpr std::array<std::string_view, 4> kAlways = {"nodes", "threads", "distribution", "mix"};
  constexpr std::array kColumns = {
      MetricColumn{.name = "work requests", .metric = kWorkRequestsPerOperation},
      MetricColumn{.name = "rereads", .metric = kRereadsPerOperation},
      MetricColumn{.name = "lost races", .metric = kLostRacesPerOperation},
      MetricColumn{.name = "hot", .metric = kHotHitsPerOperation},
      MetricColumn{.name = "per block", .metric = kModificationsPerFlush}};
  return application_table(
      results, kAlways, kColumns,
      "work requests, rereads\n(of entries that changed while they were read) and lost races (of "
      "updates): per operation; hot: answered by the hot area, per operation; per block: "
      "modifications of a\nblock that are written at once");
}

}  // namespace verbena::bench
