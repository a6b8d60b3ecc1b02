#include "src/reproduce/abscissa.h"

#include <array>

#include "src/bench/experiment/workload.h"

namespace verbena::reproduce {

namespace {

using bench::Point;

double requesters(const Point& point) { return static_cast<double>(point.nodes) * point.threads; }
double responding_threads(const Point& point) {
  return static_cast<double>(point.responder_nodes) * point.responder_threads;
}
double empty_percent(const Point& point) {
  return 100.0 - 100.0 * point.active_ppm / Point::kAlwaysActive;
}

// In 1:M and M:M both roles have as many threads, in M:M as many nodes: these move together.
constexpr std::array<std::string_view, 2> kNodes = {"nodes", "responders"};
constexpr std::array<std::string_view, 2> kThreads = {"threads", "responder-threads"};
constexpr std::array<std::string_view, 1> kResponderThreads = {"responder-threads"};
constexpr std::array<std::string_view, 1> kResponse = {"response"};
constexpr std::array<std::string_view, 1> kPending = {"pending"};
constexpr std::array<std::string_view, 1> kActive = {"active"};
constexpr std::array<std::string_view, 1> kSize = {"size"};
constexpr std::array<std::string_view, 1> kEntries = {"entries"};
constexpr std::array<std::string_view, 1> kBatch = {"batch"};
constexpr std::array<std::string_view, 1> kRecordSize = {"record-size"};
constexpr std::array<std::string_view, 1> kRegion = {"region"};
constexpr std::array<std::string_view, 1> kHot = {"hot"};
constexpr std::array<std::string_view, 1> kTheta = {"theta"};
constexpr std::array<std::string_view, 1> kTuples = {"tuples"};
constexpr std::array<std::string_view, 1> kPeers = {"peers"};
constexpr std::array<std::string_view, 1> kTest = {"test"};
constexpr std::array<std::string_view, 4> kShape = {"nodes", "responders", "threads",
                                                    "responder-threads"};

constexpr std::array kAbscissas = {
    Abscissa{"nodes", nullptr, kNodes},
    Abscissa{"responders", nullptr, kNodes},
    Abscissa{"threads", nullptr, kThreads},
    Abscissa{"responder-threads", nullptr, kResponderThreads},
    Abscissa{"response", nullptr, kResponse},
    Abscissa{"pending", nullptr, kPending},
    Abscissa{"size", nullptr, kSize},
    Abscissa{"entries", nullptr, kEntries},
    Abscissa{"batch", nullptr, kBatch},
    Abscissa{"record-size", nullptr, kRecordSize},
    Abscissa{"region", nullptr, kRegion},
    Abscissa{"hot", nullptr, kHot},
    Abscissa{"theta", nullptr, kTheta},
    Abscissa{"tuples", nullptr, kTuples},
    Abscissa{"peers", nullptr, kPeers},
    Abscissa{"test", nullptr, kTest},
    Abscissa{"requesters", requesters, kShape},
    Abscissa{"responding-threads", responding_threads, kResponderThreads},
    Abscissa{"empty-percent", empty_percent, kActive},
};

}  // namespace

double Abscissa::value(const bench::Point& point) const {
  if (computed != nullptr) return computed(point);
  const bench::Axis* axis = point.workload->find_axis(name);
  return axis == nullptr ? 0 : static_cast<double>(axis->get(point));
}

const Abscissa* find_abscissa(std::string_view name) {
  for (const Abscissa& one : kAbscissas) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

}  // namespace verbena::reproduce
