"""The shape of a run's output, learned as it comes: the loss among losses, the step, the blocks."""

from __future__ import annotations

import pytest

from overnight.core.formats.shape import PATIENCE, SURE_RECORDS, Shape
from shape_lab import losses, readings, records, steps

# --- which number is the loss ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "loss"),
    [
        # PccAI: the auxiliary loss may rise by design.
        ("iter: 4, bpp_loss: 0.049, xyz_loss: 0.175, loss: 0.224, aux_loss: 91.96", 0.224),
        # Detectron2
        ("iter: 19  total_loss: 0.13  loss_cls: 0.04  loss_box_reg: 0.06  lr: 0.04", 0.13),
        # NeMo: Lightning's own loss is a running mean
        ("| 7/50 [6:26<94:39, 1.37it/s, loss=2.64, v_num=9, reduced_train_loss=2.556]", 2.556),
        # OneTrainer
        ("step:   3%|▎  | 1/39 [00:01<01:04,  1.70s/it, loss=0.789, smooth loss=0.137]", 0.789),
        # icefall: of this batch, and of all so far
        ("Epoch 1, batch 100, train_loss[loss=2.6, Acc=0.7], tot_loss[loss=2.9, ], lr: 1e-3", 2.6),
        # Lightning with manual optimization: a loss that is never computed
        ("| 2/100 [00:00<00:18, 5.2it/s, loss=nan, v_num=3, d_loss=0.639, g_loss=0.687]", 0.687),
        # Marian, OpenNMT, ML.NET, OLMo, MosaicML
        ("Ep. 1 : Up. 100 : Sen. 6,543 : Cost 8.25 * 1,234 : Time 12.34s : gNorm 0.51", 8.25),
        ("Step 50/100000; acc: 45.67; ppl: 12.34; xent: 2.51; lr: 0.0001; 123/456 tok/s", 2.51),
        ("Epoch: 3, Accuracy: 0.49, Cross-Entropy: 2.29, Learning Rate: 0.01", 2.29),
        ("step=3 train/CrossEntropyLoss=12.18", 12.18),
        ("step=3 loss/train/total: 4.5", 4.5),
        # BEiT and other MetricLoggers: value (average)
        (
            "Epoch: [1]  [  10/1299]  eta: 0:10:31  loss: 6.53 (6.59)  loss_scale: 8192.0 (1.0)",
            6.53,
        ),
        # a tensor printed as it is
        ("step 3 loss: tensor(2.31, device='cuda:0', grad_fn=<NllLossBackward0>)", 2.31),
    ],
)
def test_the_training_loss_is_found_among_others(line: str, loss: float) -> None:
    """One primary loss a run, by its name."""
    assert losses([line]) == [loss]


def test_the_same_loss_stays_the_loss() -> None:
    """A line that gives only a component, or the mean of an epoch, is no record."""
    lines = ["step 1 loss 2.0", "step 2 loss_cls 0.5", "step 3 loss 1.9", "epoch mean_loss: 1.95"]
    assert records(lines) == [(1, 2.0), (3, 1.9)]


def test_another_loss_is_learned_when_the_first_is_gone() -> None:
    """A second phase of a script prints under another name."""
    lines = ["step 1 warm_loss 2.0", *(f"step {n} fine_loss 1.0" for n in range(2, 60))]
    assert steps(lines)[1] == 2 + PATIENCE


def test_losses_that_fight_are_known_as_such() -> None:
    """Of a GAN or of actor and critic only NaN means anything."""
    gan, plain = Shape(), Shape()
    gan.feed("[0/25][50/1583]\tLoss_D: 0.61\tLoss_G: 4.10\tD(x): 0.8", 1)
    plain.feed("step 3 loss 2.0 aux_loss 0.1", 1)
    assert gan.adversarial
    assert not plain.adversarial


# --- which number is the step ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        pytest.param(
            ["Epoch [1/3], Step [300/600], Loss: 2.0", "Epoch [2/3], Step [300/600], Loss: 1.9"],
            [300, 900],
            id="a-counter-that-restarts-every-epoch",
        ),
        pytest.param(
            ["Train Epoch: 1 [0/60 (0%)]\tLoss: 2.0", "Train Epoch: 1 [32/60 (53%)]\tLoss: 1.9"],
            [0, 32],
            id="pytorch-examples",
        ),
        pytest.param(
            ["[0/25][1500/1583]\tLoss_D: 0.6\tLoss_G: 4.1", "[1/25][0/1583]\tLoss_D: 1\tLoss_G: 4"],
            [1500, 1583],
            id="epoch-and-batch-in-brackets",
        ),
        pytest.param(
            [
                "step:  97%|█▉| 38/39 [.., loss=0.5]",
                "step: 100%|██| 39/39 [.., loss=0.4]",
                "epoch:  12%|█   | 1/8 [05:00<05:00]",
                "step:   3%|▎ | 1/39 [.., loss=0.3]",
            ],
            [38, 39, 40],
            id="a-bar-of-epochs-and-a-bar-of-steps",
        ),
        pytest.param(
            ["epoch 001:    100 / 1374 loss=15.8, ppl=59608.55, num_updates=10, lr=3.5e-07"],
            [10],
            id="fairseq-counts-batches-and-updates",
        ),
        pytest.param(
            ["Epoch 0:   6%|██ | 31900/500150 [6:26:47<94:39:17, loss=2.6, global_step=3.2e+4]"],
            [31900],
            id="a-rounded-step-is-the-worse-one",
        ),
        pytest.param(
            ["490 | loss 5.07 | lr 5.0e-04 | 871819.91ms | mfu 0.19%"], [490], id="no-name-at-all"
        ),
        pytest.param(["s:326 trl:3.2519 lr:0.0003"], [326], id="llm.c-main-log"),
        pytest.param(["I0721 x.py:48] [990] lr=0.1, train_loss=2.1"], [990], id="in-brackets"),
        pytest.param(["Train loss 1200 2.345"], [1200], id="step-and-loss-after-one-name"),
        pytest.param(["1014: 391.5, 48.2 avg, 0.001000 rate, 1.9 seconds"], [1014], id="darknet"),
        pytest.param(["27.81% [2700/9707 1:31:48<3:58:14 0.5]"], [2700], id="fastai-bar"),
        pytest.param(
            ["INFO :: Progress on:train 1.47kit/10.0kit rate:2.1s/it postfix:loss=2.99"] * 2
            + ["INFO :: Progress on:train 1.47kit/10.0kit rate:2.1s/it postfix:loss=2.95"],
            [1470, 1470, 1470],
            id="rounded-steps-repeat",
        ),
        pytest.param(
            [
                "step 300 loss 2",
                "step 310 loss 2",
                "Resuming",
                "step 200 loss 2",
                "step 210 loss 2",
            ],
            [300, 310, 200, 210],
            id="a-resume-goes-back",
        ),
        pytest.param(
            ["08/03 22:08:00 - INFO - Epoch(train)  [1][  10/2931]  lr: 4e-04  loss: 1.89"],
            [10],
            id="a-date-is-no-counter",
        ),
        pytest.param(
            ["steps:   0%|    | 7/20000 [00:10<60:33:09, 10.90s/it, avr_loss=0.1]"],
            [7],
            id="a-percentage-is-no-step",
        ),
    ],
)
def test_steps_of_the_whole_run(lines: list[str], expected: list[int]) -> None:
    """Whatever a script counts, the records get steps that only grow, but for a resume."""
    assert steps(lines) == expected


def test_the_bar_above_gives_the_step_of_a_hugging_face_record() -> None:
    """The dictionary has no step; other bars (data, evaluation) have nothing to say."""
    lines = []
    for step in (5, 10):
        lines += ["Map: 100%|██████████| 9000/9000 [00:10<00:00]"]
        lines += [f"  1%|          | {step}/1000 [00:20<1:07:59,  4.10s/it]", " " * 40]
        lines += [f"{{'loss': {2 - step / 10}, 'grad_norm': 1.9, 'epoch': 0.01}}"]
        lines += [" 50%|█████     | 25/50 [00:20<00:20,  4.10s/it]"]
    assert records(lines) == [(5, 1.5), (10, 1.0)]


def test_records_without_any_step_have_none() -> None:
    """They are numbered later; an epoch with decimals is no step."""
    lines = ["{'loss': 1.2, 'epoch': 0.0}", "{'loss': 1.1, 'epoch': 0.0}"]
    assert steps(lines) == [None, None]


def test_one_record_an_epoch_has_the_epoch_as_its_step() -> None:
    """Until there is a second record in the same epoch."""
    lines = [line for n in range(3) for line in (f"Epoch {n}/59", "train Loss: 2.7 Acc: 0.4", "")]
    assert steps(lines) == [0, 1, 2]
    assert steps(["Epoch: 1, loss: 2.0", "Epoch: 1, loss: 1.9"]) == [1, None]


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank0]: ",
        "2024-05-01 10:00:00,123 - INFO - ",
        "0: ",
        "(train pid=1, ip=10.0.0.1) ",
        "2024-05-01T10:00:00.123456789Z ",
        "\x1b[32m",
    ],
)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7/50 [00:12<10:00, 3.12it/s, loss=2.5]", 7),
        ("1014: 2.5, 48.2 avg, 0.001000 rate, 1.9 seconds", 1014),
        ("27.81% [2700/9707 1:31:48<3:58:14 2.5]", 2700),
        ("Train Epoch: 1 [32/60 (53%)]\tLoss: 2.5", 32),
        ("step: 40  loss: 2.5  memory: 66.91GiB(37.51%)", 40),
    ],
)
def test_what_loggers_and_launchers_put_before_a_line(
    prefix: str, line: str, expected: int
) -> None:
    """Ranks, time stamps, containers, srun, Ray and colors change nothing."""
    assert records([prefix + line]) == [(expected, 2.5)]


# --- what is no training record -------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "step 250: train loss 2.1, val loss 2.2",
        "validate step: 40  loss: 5.53  memory: 66.91GiB(37.51%)",
        "Epoch(val)  [1][  10/293]  loss: 1.8",
        "val Loss: 3.0 Acc: 0.3",
        "Dataset used: Validation, Epoch: 3, Cross-Entropy: 2.3",
        "{'eval_loss': '0.8911', 'eval_runtime': '41.2', 'epoch': '0.5778'}",
        "Test: [ 0/98]\tTime 1.0 ( 1.0)\tLoss 5.1 (5.1)",
        "step:125/1750 val_loss:4.5 train_time:0ms",
    ],
)
def test_an_evaluation_is_no_training_record(line: str) -> None:
    """It has a loss of the same name, often on the same step."""
    (found,) = readings([line])
    assert found.eval_loss is not None
    assert not found.is_training_record


@pytest.mark.parametrize(
    "line",
    [
        "{'train_runtime': 100.2, 'train_steps_per_second': 0.1, 'train_loss': 2.3, 'epoch': 1.0}",
        "Averaged stats: lr: 0.0014  loss: 6.59 (6.59)  grad_norm: 0.39 (nan)",
        "generated: my training had loss: nan",
        "Pseudo dice [0.7725, nan, 0.742]",
        "step 9 | lo",
        "step 331/19560 | loss 2.0 | norm nan (slurmstepd: error: *** JOB 1 CANCELLED",
    ],
)
def test_summaries_and_sampled_text_are_no_records(line: str) -> None:
    """Once the records of a run are known to carry their step, a loss without one is no record."""
    lines = [f"step {n} loss 2.{n}" for n in range(SURE_RECORDS + 1)]
    assert len(records([*lines, line])) == len(lines)


def test_sampled_text_that_reads_like_a_record_is_doubted() -> None:
    """By its step and the words around it; a script that really goes on so is believed soon."""
    log = [f"step {n}: loss 2.{n}, time 10ms" for n in (10, 20, 30)]
    text = ["The log said step 9: loss 999 and then", "step 7: loss 0.0 was printed"]
    assert steps([*log, *text, "step 40: loss 2.4, time 10ms"]) == [10, 20, 30, 40]
    assert steps([*log, "step 5: loss 2.0, time 10ms"]) == [10, 20, 30, 5]  # resumed
    other = [f"resumed at step {n}: loss 2.{n} (lower rate)" for n in (1, 2, 3, 4, 5)]
    assert steps([*log, *other]) == [10, 20, 30, 4, 5]


@pytest.mark.parametrize(
    ("line", "key", "loss"),
    [
        ("step 5 train_mse: 0.25 val_mse: 0.5", "train_mse", 0.25),
        ("step 5 bpc 1.25", "bpc", 1.25),
        ("step 5: train_error=0.25", "train_error", 0.25),
        ("step 5 mse 0.25 loss 2.5", "loss", 2.5),
        ("{'loss': np.float64(2.5), 'step': 5}", "loss", 2.5),
        ("{'train_loss': Array(2.5, dtype=float32), 'step': 5}", "train_loss", 2.5),
        ("step 5 loss torch.tensor(2.5)", "loss", 2.5),
        ("5 [D loss: 0.5, acc.: 50.00%] [G loss: 2.5]", "G loss", 2.5),
    ],
)
def test_a_measure_is_the_loss_where_nothing_else_is(line: str, key: str, loss: float) -> None:
    """And a number may be wrapped in the name of its type."""
    (found,) = readings([line])
    assert (found.loss_key, found.loss, found.step) == (key, loss, 5)


def test_ranks_and_redraws_are_one_record() -> None:
    """Eight ranks in any order, with other numbers; but the first NaN of any of them is news."""
    lines = [f"[rank{r}]: step: {n} loss: 2.{n}{r}" for n in range(20) for r in (3, 1, 0, 2)]
    assert steps(lines) == list(range(20))
    assert steps([*lines, "[rank1]: step: 19 loss: nan"])[-2:] == [19, 19]


def test_ranks_without_steps_are_one_record() -> None:
    """The first rank that speaks is followed."""
    lines = [f"[rank{r}]: loss: 2.{n}{r} lr: 1e-4" for n in range(20) for r in range(4)]
    assert len(records(lines)) == 20


def test_a_second_logger_says_nothing_new() -> None:
    """Two handlers print every record twice."""
    lines = [f"{{'loss': 2.{n}, 'grad_norm': 1.{n}, 'epoch': 0.{n}}}" for n in range(9)]
    assert len(records(line for line in lines for _handler in range(2))) == 9


def test_a_number_that_never_moves_is_no_step() -> None:
    """`[4711]` is a process id."""
    found = steps(f"[4711] loss = 2.{n}" for n in range(400))
    assert len(found) > 90
    assert found[-1] is None


def test_a_part_that_is_lost_counts_where_no_total_is_printed() -> None:
    """Object detectors print the parts; one that was never finite is not used."""
    well = [f"step {n} loss_cls 0.3 loss_box 0.5 loss_mask nan" for n in range(5)]
    lost = [f"step {n} loss_cls 0.3 loss_box nan loss_mask nan" for n in range(5, 8)]
    assert [str(loss) for loss in losses([*well, *lost])] == ["0.3"] * 5 + ["nan"] * 3
    total = [f"{line} loss 0.8" for line in [*well, *lost]]
    assert set(losses(total)) == {0.8}


def test_the_numbers_of_a_step_in_two_lines() -> None:
    """The gradient norm before the loss, after complete records: the loss is not taken for gone."""
    whole = [f"step {n} | grad_norm 1.1 loss 2.{n}" for n in (1, 2, 3)]
    halves = [f"step {n} | {part}" for n in (4, 5) for part in ("grad_norm 1.1", f"loss 2.{n}")]
    assert [loss for loss in losses([*whole, *halves]) if loss is not None] == [
        2.1,
        2.2,
        2.3,
        2.4,
        2.5,
    ]


def test_a_log_whose_words_always_change_is_not_doubted() -> None:
    """Its steps begin anew in each epoch, and no two lines are alike."""
    words = ["alpha", "beta", "gamma", "delta", "eps"]
    lines = [f"{words[n % 5]} step {n % 12} loss 2.{n} {words[n * 3 % 4]}" for n in range(36)]
    assert len(losses(lines)) == 36
