#include "src/bench/baselines/external.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/file_descriptor.h"
#include "src/base/runtime.h"
#include "src/base/tsc.h"

namespace verbena::bench::baselines {

namespace {

constexpr uint64_t kTimeoutNs = 60'000'000'000;
constexpr uint64_t kLookNs = 5'000'000;
constexpr int kExitNotFound = 127;

// A program pinned to one CPU, whose output is kept. Killed if it outlives its owner.
class Program {
 public:
  Program(const std::vector<std::string>& arguments, int cpu) {
    int pipe_ends[2];
    if (pipe2(pipe_ends, O_CLOEXEC) != 0) return;
    output_ = FileDescriptor(pipe_ends[0]);
    const FileDescriptor input(pipe_ends[1]);
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (const std::string& argument : arguments)
      argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pin_this_thread(cpu);
      dup2(input.get(), STDOUT_FILENO);
      dup2(input.get(), STDERR_FILENO);
      execvp(argv[0], argv.data());
      _exit(kExitNotFound);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }

  bool ended() {
    if (process_ > 0 && waitpid(process_, &wait_status_, WNOHANG) == process_) process_ = 0;
    return process_ <= 0;
  }

  // Everything that the program prints until its end; an error where it failed or takes too long.
  // What fits into a pipe is enough: these programs print a page.
  Result<std::string> wait(const std::string& name) {
    const uint64_t start_ns = now_ns();
    while (!ended()) {
      if (now_ns() - start_ns > kTimeoutNs) {
        return Status(StatusCode::kTimeout,
                      fmt::format("{} did not end within {} s", name, kTimeoutNs / 1'000'000'000));
      }
      sleep_ns(kLookNs);
    }
    std::string text(64 * 1024, '\0');
    const ssize_t size = output_.valid() ? read(output_.get(), text.data(), text.size()) : 0;
    text.resize(size > 0 ? static_cast<size_t>(size) : 0);
    if (WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == kExitNotFound) {
      return Status(
          StatusCode::kNotFound,
          fmt::format("there is no program {}; install the packages ucx-utils and perftest "
                      "(scripts/setup bench)",
                      name));
    }
    if (process_ < 0 || wait_status_ != 0) {
      const size_t line = text.find_last_not_of('\n');
      const size_t begin = line == std::string::npos ? 0 : text.rfind('\n', line) + 1;
      return Status(StatusCode::kUnavailable,
                    fmt::format("{} failed: {}", name, text.substr(begin, line + 1 - begin)));
    }
    return text;
  }

 private:
  pid_t process_ = -1;
  int wait_status_ = 0;
  FileDescriptor output_;
};

// A port that was free a moment ago.
uint16_t free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) return 0;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// Whether somebody listens there. Trying to connect would be taken for the client.
bool somebody_listens(uint16_t port) {
  constexpr std::string_view kListening = "0A";
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      if (!(fields >> number >> local >> remote >> state) || state != kListening) continue;
      if (local.ends_with(fmt::format(":{:04X}", port))) return true;
    }
  }
  return false;
}

// Runs the same program as server and as client, and returns what the client printed.
Result<std::string> run_both(const CpuPair& cpus, const std::string& name,
                             const std::vector<std::string>& server,
                             const std::vector<std::string>& client, uint16_t port) {
  Program server_program(server, cpus.cpu[1]);
  const uint64_t start_ns = now_ns();
  while (!somebody_listens(port)) {
    if (server_program.ended() || now_ns() - start_ns > kTimeoutNs) {
      VERBENA_RETURN_IF_ERROR(server_program.wait(name).status());
      return Status(StatusCode::kUnavailable, fmt::format("{} ended before its client came", name));
    }
    sleep_ns(kLookNs);
  }
  Program client_program(client, cpus.cpu[0]);
  return client_program.wait(name);
}

// The last one that begins with a number.
std::string last_line(const std::string& text) {
  std::string last;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.front() >= '0' && line.front() <= '9') last = line;
  }
  return last;
}

// Of the first line of numbers below a heading that has `title`: the number in this column, from 0.
Result<double> perftest_column(const std::string& output, const std::string& title, int column) {
  std::istringstream lines(output);
  bool heading = false;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream numbers(line);
    double number = 0;
    int read = 0;
    while (heading && read <= column && numbers >> number) ++read;
    if (read > column && number > 0) return number;
    heading = heading || line.find(title) != std::string::npos;
  }
  return Status(StatusCode::kProtocolViolation, fmt::format("perftest printed no {}", title));
}

// `program` with its first arguments, as server and as client.
Result<double> ucx_median_ns(const CpuPair& cpus, const std::vector<std::string>& program,
                             const std::string& test, uint32_t bytes, uint64_t round_trips) {
  const uint16_t port = free_port();
  std::vector<std::string> server = program;
  server.insert(server.end(),
                {"-t", test, "-s", fmt::format("{}", bytes), "-n", fmt::format("{}", round_trips),
                 "-w", fmt::format("{}", round_trips / 10), "-p", fmt::format("{}", port)});
  std::vector<std::string> client = server;
  client.insert(client.end(), {"-f", "-v", "127.0.0.1"});
  VERBENA_ASSIGN_OR_RETURN(const std::string output,
                           run_both(cpus, "ucx_perftest", server, client, port));
  VERBENA_ASSIGN_OR_RETURN(const double median_us, parse_ucx_median_us(output));
  return median_us * 1e3;
}

Result<std::string> perftest_output(const CpuPair& cpus, const std::string& tool,
                                    const std::string& program,
                                    const std::vector<std::string>& options, uint64_t iterations) {
  const uint16_t port = free_port();
  std::vector<std::string> server = {tool, "run", "--", program, "-d", "soft0"};
  server.insert(server.end(), options.begin(), options.end());
  server.insert(server.end(), {"-n", fmt::format("{}", iterations), "-p", fmt::format("{}", port)});
  std::vector<std::string> client = server;
  client.push_back("127.0.0.1");
  return run_both(cpus, program, server, client, port);
}

}  // namespace

Result<double> parse_ucx_median_us(const std::string& output) {
  // With -f -v: a heading, then "iterations,50.0_percentile_lat,avg_lat,..." as numbers.
  const std::string line = last_line(output);
  std::istringstream fields(line);
  std::string iterations;
  double median_us = 0;
  if (output.find("50.0_percentile_lat") == std::string::npos ||
      !std::getline(fields, iterations, ',') || !(fields >> median_us) || median_us <= 0) {
    return Status(StatusCode::kProtocolViolation,
                  fmt::format("ucx_perftest printed no median: '{}'", line.substr(0, 100)));
  }
  return median_us;
}

Result<double> parse_perftest_typical(const std::string& output) {
  // "#bytes #iterations t_min t_max t_typical t_avg ..."
  return perftest_column(output, "t_typical", 4);
}

Result<double> parse_perftest_bandwidth(const std::string& output) {
  // "#bytes #iterations BW_peak BW_average message_rate", in units of 2^20 bytes per second.
  VERBENA_ASSIGN_OR_RETURN(const double average, perftest_column(output, "BW average[MB/sec]", 3));
  return average * (1 << 20);
}

Result<double> ucx_one_way_ns(const CpuPair& cpus, const std::string& test, uint32_t bytes,
                              uint64_t round_trips) {
  return ucx_median_ns(cpus, {"ucx_perftest", "-x", "posix", "-d", "memory"}, test, bytes,
                       round_trips);
}

Result<double> ucx_verbs_one_way_ns(const CpuPair& cpus, const std::string& tool,
                                    const std::string& test, uint32_t bytes, uint64_t round_trips) {
  return ucx_median_ns(cpus, {tool, "run", "--", "ucx_perftest", "-x", "rc_verbs", "-d", "soft0:1"},
                       test, bytes, round_trips);
}

Result<double> perftest_one_way_ns(const CpuPair& cpus, const std::string& tool,
                                   const std::string& program, const std::string& connection,
                                   uint64_t round_trips) {
  // In cycles: in microseconds it prints two digits only, which is 10 ns.
  VERBENA_ASSIGN_OR_RETURN(
      const std::string output,
      perftest_output(cpus, tool, program, {"-c", connection, "-s", "8", "-C"}, round_trips));
  VERBENA_ASSIGN_OR_RETURN(const double cycles, parse_perftest_typical(output));
  return cycles / tsc_cycles_per_ns();
}

Result<double> perftest_write_bandwidth(const CpuPair& cpus, const std::string& tool,
                                        uint64_t message_bytes, uint64_t messages) {
  VERBENA_ASSIGN_OR_RETURN(const std::string output,
                           perftest_output(cpus, tool, "ib_write_bw",
                                           {"-s", fmt::format("{}", message_bytes)}, messages));
  return parse_perftest_bandwidth(output);
}

}  // namespace verbena::bench::baselines
