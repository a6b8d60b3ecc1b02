#include "src/reproduce/abscissa.h"

#include <array>

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
template <auto kMember>
double member(const Point& point) {
  return static_cast<double>(point.*kMember);
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
constexpr std::array<std::string_view, 1> kRegion = {"region"};
constexpr std::array<std::string_view, 4> kShape = {"nodes", "responders", "threads",
                                                    "responder-threads"};

constexpr std::array kAbscissas = {
    Abscissa{"nodes", member<&Point::nodes>, kNodes},
    Abscissa{"responders", member<&Point::responder_nodes>, kNodes},
    Abscissa{"threads", member<&Point::threads>, kThreads},
    Abscissa{"responder-threads", member<&Point::responder_threads>, kResponderThreads},
    Abscissa{"response", member<&Point::response_bytes>, kResponse},
    Abscissa{"pending", member<&Point::pending>, kPending},
    Abscissa{"size", member<&Point::size_bytes>, kSize},
    Abscissa{"entries", member<&Point::entries>, kEntries},
    Abscissa{"region", member<&Point::region_bytes>, kRegion},
    Abscissa{"requesters", requesters, kShape},
    Abscissa{"responding-threads", responding_threads, kResponderThreads},
    Abscissa{"empty-percent", empty_percent, kActive},
};

}  // namespace

const Abscissa* find_abscissa(std::string_view name) {
  for (const Abscissa& one : kAbscissas) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

}  // namespace verbena::reproduce
