"""code-judge's and SandboxFusion's routes, and answer verification."""

import pytest


def run(server, path='/run', **fields):
  return server.post(path, {'type': 'python', **fields})


def test_code_judge_run(server):
  code, answer = run(server, solution='print(input())', input='5', sub_id='a')
  assert code == 200
  assert answer.pop('cost') < 5
  assert answer == {
      'sub_id': 'a', 'success': True, 'run_success': True, 'stdout': '5\n',
      'stderr': '', 'reason': '',
  }


@pytest.mark.parametrize('solution, expected, success, run_success', [
    ('print(5)', '5', True, True), ('print(5)', ' 5\n', True, True),
    ('print(5)', '6', False, True), ('1/0', None, False, False),
    ('print(5', None, False, False),
])
def test_code_judge_verdicts(server, solution, expected, success, run_success):
  answer = run(server, solution=solution, expected_output=expected)[1]
  assert (answer['success'], answer['run_success'], answer['reason']) == (
      success, run_success, ''
  )


def test_judge_leaves_out_the_streams(server):
  answer = run(server, '/judge', solution='print(5)')[1]
  assert 'stdout' not in answer and answer['success']


@pytest.mark.parametrize('item', [
    {'type': 'cpp', 'solution': 'int main(){}'}, {'type': 'python'},
    {'type': 'python', 'solution': 7}, 'text', None,
    {'type': 'python', 'solution': 'print(1)', 'input': ['x']},
    {'type': 'python', 'solution': 'print(1)', 'expected_output': 1},
])
def test_one_bad_item_does_not_poison_a_batch(server, item):
  good = {'type': 'python', 'solution': 'print(1)', 'sub_id': 'g'}
  for path in ('/run/batch', '/run/long-batch', '/judge/batch'):
    code, answer = server.post(path, {
        'type': 'batch', 'sub_id': 'b', 'submissions': [good, item, good]})
    assert code == 200 and answer['sub_id'] == 'b'
    assert [r['success'] for r in answer['results']] == [True, False, True]
    assert answer['results'][1]['reason'] == 'invalid_input'


def test_code_judge_bad_bodies_and_status(server):
  assert server.post('/run', b'{')[0] == 422
  assert server.post('/run/batch', {'submissions': []})[0] == 422
  assert server.get('/ping') == (200, '"pong"')
  assert 'num_workers' in server.get('/status')[1]


def test_code_judge_keeps_the_start_of_long_output(server):
  answer = run(server, solution='print("x" * 5000)')[1]
  assert answer['stdout'] == 'x' * 1000


@pytest.mark.parametrize('code, status, run_status, return_code', [
    ('print(1)', 'Success', 'Finished', 0),
    ('1/0', 'Failed', 'Finished', 1),
    ('print(1', 'Failed', 'Finished', 1),
    ('while True: pass', 'Failed', 'TimeLimitExceeded', None),
    ('import os; os.kill(os.getpid(), 9)', 'Failed', 'Finished', -9),
    ('import os\nwhile True: os.write(1, b"x" * 9999)', 'Failed', 'Finished',
     -9),
])
def test_sandbox_fusion(server, code, status, run_status, return_code):
  http, answer = server.post('/run_code', {
      'code': code, 'language': 'python', 'run_timeout': 1.0,
      'compile_timeout': 5, 'memory_limit_MB': -1, 'files': {},
      'fetch_files': [], 'stdin': None,
  })
  assert http == 200 and answer['compile_result'] is None
  result = answer['run_result']
  assert (answer['status'], result['status'], result['return_code']) == (
      status, run_status, return_code
  )
  assert result['execution_time'] >= 0 and answer['files'] == {}


def test_sandbox_fusion_bad_requests(server):
  assert server.post('/run_code', {'code': '1', 'language': 'cpp'})[0] == 422
  assert server.post('/run_code', {'language': 'python'})[0] == 422
  assert server.get('/v1/ping')[0] == 200


@pytest.mark.parametrize('answer, reference, equal, method', [
    ('42', '42', True, 'integer'), ('042', '42', True, 'integer'),
    ('1,000', '1000', True, 'integer'), ('1{,}000', '1000', True, 'integer'),
    ('1,00', '100', False, None), ('-7', '7', False, 'integer'),
    ('\u22127', '-7', True, 'integer'), ('-0', '0', True, 'integer'),
    ('9' * 50_000, '9' * 50_000, True, 'integer'),
    ('9' * 50_000 + '0', '9' * 50_000, False, 'integer'),
    ('x', 'x', True, 'text'), ('', '5', False, 'text'),
    (r'\frac{1}{2}', '0.5', True, 'math_verify'),
    (r'\frac{1}{2}', '0.51', False, 'math_verify'),
    (r'2\sqrt{2}', r'\sqrt{8}', True, 'math_verify'),
    ('x^2+1', '1+x^2', True, 'math_verify'), ('(1,2)', '(2,1)', False, None),
])
def test_verification(server, answer, reference, equal, method):
  code, result = server.post('/v1/verify', {
      'answer': answer, 'reference': reference, 'timeout_s': 30,
  })
  assert code == 200 and result['status'] == 'success', result
  assert result['equal'] is equal
  assert method is None or result['method'] == method


@pytest.mark.parametrize('answer', [
    '10^{10^{10}}', '9' * 20_000 + '/7', '{' * 5000, '\\frac' * 2000,
    '(' * 3000 + '1' + ')' * 3000, '\x00', '1$ $2', '\ud800', '1 2', '3$4$',
    '__import__("os").system("true")', 'True', 'print(True)',
])
def test_hard_answers_do_not_hang_and_are_not_equal(server, answer):
  code, result = server.post('/v1/verify', {
      'answer': answer, 'reference': '3', 'timeout_s': 3,
  })
  assert code == 200 and result['equal'] is False, result


def test_verification_of_integers_only(server):
  result = server.post('/v1/verify', {
      'answer': r'\frac{6}{2}', 'reference': '3', 'integers_only': True,
  })[1]
  assert (result['equal'], result['method']) == (False, 'integer')


def test_verification_batch(server):
  answer = server.post('/v1/verify_batch', {'requests': [
      {'answer': '1', 'reference': '1', 'request_id': 'a'}, {'answer': 5},
      {'answer': '2', 'reference': '1'},
  ]})[1]
  assert [r['equal'] for r in answer['results']] == [True, False, False]
  assert answer['results'][1]['status'] == 'invalid_request'
  assert answer['results'][0]['request_id'] == 'a'
