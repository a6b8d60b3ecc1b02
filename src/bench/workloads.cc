#include "src/bench/workloads.h"

#include <array>

#include "src/bench/hashtable/hashtable_workload.h"
#include "src/bench/join/join_workload.h"
#include "src/bench/log/log_workload.h"
#include "src/bench/message/message_workload.h"
#include "src/bench/remote/remote_workload.h"
#include "src/bench/request_response/request_response_workload.h"
#include "src/bench/shuffle/shuffle_workload.h"
#include "src/bench/verbs/verbs_workload.h"

namespace verbena::bench {

std::span<const Workload* const> workloads() {
  static const std::array kWorkloads = {
      &request_response_workload(), &verbs_workload(), &remote_workload(),  &message_workload(),
      &hashtable_workload(),        &log_workload(),   &shuffle_workload(), &join_workload()};
  return kWorkloads;
}

const Workload* find_workload(std::string_view name) {
  for (const Workload* workload : workloads()) {
    if (workload->traits().name == name) return workload;
  }
  return nullptr;
}

const Workload* workload_with_axis(std::string_view axis_name) {
  for (const Workload* workload : workloads()) {
    if (workload->find_axis(axis_name) != nullptr) return workload;
  }
  return nullptr;
}

}  // namespace verbena::bench
