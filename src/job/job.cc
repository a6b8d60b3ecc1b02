#include "verbena/job.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "src/base/assert.h"
#include "src/job/job_state.h"
#include "src/job/launcher.h"
#include "src/job/member.h"
#include "src/job/pmi_client.h"

namespace verbena {

namespace {

constexpr const char* kCoordinatorKey = "verbena-coordinator";

Result<JobSecret> find_secret(const JobOptions& options, const job::Environment& environment) {
  if (options.secret) return *options.secret;
  if (!options.secret_file.empty()) return JobSecret::from_file(options.secret_file);
  const std::string file = environment("VERBENA_JOB_SECRET_FILE");
  if (!file.empty()) return JobSecret::from_file(file);
  const std::string text = environment("VERBENA_JOB_SECRET");
  if (!text.empty()) return JobSecret::from_string(text);
  return Status(StatusCode::kInvalidArgument,
                "the job has no secret: make one with '(umask 077; openssl rand -hex 32 > "
                "job.secret)' on a file system that all hosts see, or copy it to each, and name it "
                "in VERBENA_JOB_SECRET_FILE");
}

Result<job::Placement> find_seat(const JobOptions& options, const job::Environment& environment) {
  VERBENA_ASSIGN_OR_RETURN(job::Placement placement, job::find_placement(environment));
  if (options.rank >= 0) placement.rank = options.rank;
  if (options.size >= 0) placement.size = options.size;
  if (!options.coordinator.empty()) {
    placement.coordinator = options.coordinator;
    placement.pmi_descriptor = -1;
  }
  if (placement.rank < 0 || placement.size < 0) {
    return Status(StatusCode::kInvalidArgument,
                  "no launcher says which rank this process is; start it by mpiexec or srun, or "
                  "give rank, size and coordinator yourself (--rank, --size, --coordinator)");
  }
  if (placement.size < 1 || placement.size > kMaxJobRanks || placement.rank >= placement.size) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("rank {} of {} is impossible: ranks go from 0 to size - 1, and there are "
                    "at most {}",
                    placement.rank, placement.size, kMaxJobRanks));
  }
  if (placement.size > 1 && placement.coordinator.empty() && placement.pmi_descriptor < 0) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("the address of rank 0 is unknown{}; give it with --coordinator HOST:PORT, "
                    "or VERBENA_COORDINATOR in the environment of all ranks",
                    placement.launcher.empty()
                        ? ""
                        : fmt::format(" ({} does not give it)", placement.launcher)));
  }
  return placement;
}

// Where others may reach this host, as "ADDRESS:PORT,...": the launcher does not know its networks.
std::string own_addresses(uint16_t port) {
  std::string list;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) == 0) {
    for (const ifaddrs* one = interfaces; one != nullptr; one = one->ifa_next) {
      const bool usable = one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
                          (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
      if (!usable) continue;
      char text[INET_ADDRSTRLEN] = {};
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text,
                sizeof(text));
      list += fmt::format("{}:{},", text, port);
    }
    freeifaddrs(interfaces);
  }
  return list + fmt::format("127.0.0.1:{}", port);
}

std::vector<std::string> split_list(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    if (end > at) parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Result<ControlListener> listen_as_coordinator(const job::Placement& placement,
                                              const JobSecret& secret) {
  if (placement.pmi_descriptor >= 0) return ControlListener::listen("0.0.0.0", 0, secret);
  VERBENA_ASSIGN_OR_RETURN(const job::HostAndPort parts, job::split_address(placement.coordinator));
  const bool ipv6 = parts.host.find(':') != std::string::npos;
  return ControlListener::listen(ipv6 ? "::" : "0.0.0.0", parts.port, secret);
}

Result<job::Mesh> find_ranks(const job::Placement& placement, const JobSecret& secret,
                             const Deadline& deadline) {
  const job::Seat seat{placement.rank, placement.size};
  std::optional<job::PmiClient> pmi;
  if (placement.pmi_descriptor >= 0) {
    VERBENA_ASSIGN_OR_RETURN(
        pmi, job::PmiClient::start(placement.pmi_descriptor, deadline.remaining_ns()));
    pmi->finish_at_exit();
  }
  if (seat.rank == 0) {
    VERBENA_ASSIGN_OR_RETURN(ControlListener listener, listen_as_coordinator(placement, secret));
    if (pmi) {
      VERBENA_RETURN_IF_ERROR(pmi->put(kCoordinatorKey, own_addresses(listener.port())));
      VERBENA_RETURN_IF_ERROR(pmi->barrier());
    }
    return job::gather_ranks(seat, listener, deadline);
  }
  // Only what rank 0 left with the launcher is a list.
  std::vector<std::string> coordinators = {placement.coordinator};
  if (pmi) {
    VERBENA_RETURN_IF_ERROR(pmi->barrier());
    VERBENA_ASSIGN_OR_RETURN(const std::string list, pmi->get(kCoordinatorKey));
    coordinators = split_list(list);
  }
  return job::join_ranks(seat, coordinators, secret, deadline);
}

}  // namespace

Result<Job> Job::join(const JobOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const job::Placement placement,
                           find_seat(options, job::process_environment));
  VERBENA_ASSIGN_OR_RETURN(const JobSecret secret, find_secret(options, job::process_environment));
  const Deadline deadline(options.timeout_ns);
  job::Mesh mesh;
  if (placement.size > 1) {
    VERBENA_ASSIGN_OR_RETURN(mesh, find_ranks(placement, secret, deadline));
  } else {
    mesh.peers.resize(1);
    mesh.hosts = {job::host_name()};
  }
  Job job(
      std::make_unique<State>(State{{placement.rank, placement.size}, std::move(mesh), secret}));
  // Nobody goes on before all can be reached by all. What one of them says of its failure, rank 0
  // tells all.
  const Status all_there = job.barrier(deadline.remaining_ns());
  if (!all_there.ok() && job.rank() == 0) job::refuse_all(job.state_->mesh, all_there);
  VERBENA_RETURN_IF_ERROR(all_there);
  return job;
}

Job::Job(std::unique_ptr<State> state) : state_(std::move(state)) {}
Job::Job(Job&&) noexcept = default;
Job& Job::operator=(Job&&) noexcept = default;
Job::~Job() = default;

int Job::rank() const { return state_->seat.rank; }
int Job::size() const { return state_->seat.size; }
const JobSecret& Job::secret() const { return state_->secret; }

const std::string& Job::host(int rank) const {
  VERBENA_ASSERT(rank >= 0 && rank < size());
  return state_->mesh.hosts[static_cast<size_t>(rank)];
}

ControlConnection& Job::peer(int rank) {
  VERBENA_ASSERT(rank >= 0 && rank < size() && rank != this->rank());
  std::optional<ControlConnection>& connection = state_->mesh.peers[static_cast<size_t>(rank)];
  VERBENA_ASSERT(connection.has_value());
  return *connection;
}

ControlConnection Job::take_peer(int rank) {
  ControlConnection taken = std::move(peer(rank));
  state_->mesh.peers[static_cast<size_t>(rank)].reset();
  return taken;
}

}  // namespace verbena
